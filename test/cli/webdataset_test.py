"""A run over tar shards: the same losses on 1 and 2 ranks, resumed on another number, and as the same images in a mixture; what lacks is named."""
import io
import os
import pathlib
import shutil
import struct
import tarfile
import tempfile
import zlib

from support import expect_success, losses, only_run, run

RECIPE = """
model:     {{ name: vit-tiny, layers: 1, width: 32, heads: 2, mlp_width: 64, image_size: 16, patch_size: 4 }}
data:      {{ {data}, resize_side: 16 }}
batch:     {{ global: 12, micro: 4 }}
optimizer: {{ lr: 1.0e-3 }}
parallel:  {{ backend: gloo }}
run:       {{ epochs: 2, evaluate: epoch, checkpoint: {{ every: 2, keep: 100 }} }}
"""


def png(seed):
    """20 x 20 pixels of RGB, each another."""
    rows = b"".join(b"\0" + bytes((seed * 31 + y * 7 + x) % 256 for x in range(60)) for y in range(20))
    chunks = ((b"IHDR", struct.pack(">IIBBBBB", 20, 20, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(struct.pack(">I", len(c)) + n + c + struct.pack(">I", zlib.crc32(n + c)) for n, c in chunks)


def write_tar(path, first, count):
    with tarfile.open(path, "w") as tar:
        for i in range(first, first + count):
            for name, content in ((f"{i:05}.png", png(i)), (f"{i:05}.cls", str(i % 3).encode())):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


def launch(recipe, output, ranks, *more):
    return expect_success(run("launch", recipe, "--ranks", ranks, "--set", f"run.output={output}", *more))


with tempfile.TemporaryDirectory() as scratch:
    folder = pathlib.Path(scratch)
    os.environ["DSTRAIN_CACHE"] = str(folder / "cache")
    tars = folder / "tars"
    tars.mkdir()
    for s in range(3):
        write_tar(tars / f"train-{s:06}.tar", 20 * s, 20)
    write_tar(tars / "val-000000.tar", 100, 9)
    recipe = folder / "tars.yaml"
    recipe.write_text(RECIPE.format(data=f'name: webdataset, path: "{tars}/train-{{000000..000002}}.tar"'))
    said = launch(recipe, folder / "one", 1)
    assert "10 train steps" in said and "on 9 samples" in said, said
    whole = only_run(folder / "one")
    expected = losses(whole)
    # The folder is the same data set; so is what was remembered of its tars.
    launch(recipe, folder / "two", 2, "--set", f"data.path={tars}")
    for step, loss in losses(only_run(folder / "two")).items():
        assert abs(loss - expected[step]) < 1e-5 * expected[step], (step, loss, expected[step])
    resumed = folder / "resumed" / whole.name
    shutil.copytree(whole, resumed)
    for checkpoint in (resumed / "checkpoints").glob("step-*"):
        if int(checkpoint.name.split("-")[1]) > 4:
            shutil.rmtree(checkpoint)
    assert "resumed at step 4" in launch(recipe, folder / "resumed", 1, "--resume", resumed)
    assert losses(resumed) == expected, (losses(resumed), expected)

    expect_success(run("plan", recipe, "--ranks", 2))  # which takes the classes from the tars
    mixed = folder / "mixed.yaml"
    mixed.write_text(RECIPE.format(data=f'mixture: [{{ name: webdataset, path: "{tars}/train-000000.tar", weight: 1 }}, '
                                        f'{{ name: webdataset, path: "{tars}/train-000001.tar", weight: 1 }}]'))
    said = launch(mixed, folder / "mixed", 2)
    assert f"mixture: webdataset {tars}/train-000000.tar 50.0 % (20 samples)" in said, said

    for settings, said in (([f"data.path={tars}/train-{{000000..000003}}.tar"], "train-000003.tar"), (["data.path=nowhere"], "'nowhere' is not there"),
                           ([f"data.path={folder / 'one'}"], "holds no tar")):
        done = run("launch", recipe, "--ranks", 1, "--set", f"run.output={folder}/never", *(w for s in settings for w in ("--set", s)))
        assert done.returncode == 65 and said in done.stderr + done.stdout, done
print("ok")
