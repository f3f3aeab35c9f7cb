"""The digits as JPEG files: packed ahead, trained with every augmentation on one and two ranks alike, in spite of a damaged file."""
import gzip
import json
import pathlib
import tempfile

try:
    import numpy
    from PIL import Image
except ImportError as missing:
    print(f"skipped: {missing}")
    raise SystemExit(77)

from support import ROOT, expect_success, losses, metrics, only_run, run


def write_digits(folder, count):
    """Enlarged to 32 x 32; every fifth one is test data."""
    for i, line in enumerate(gzip.open(ROOT / "engine/data/images/digits/digits.csv.gz", "rt").read().split()[:count]):
        *pixels, label = (int(value) for value in line.split(","))
        square = (numpy.array(pixels).reshape(8, 8) * 255 // 16).astype(numpy.uint8)
        path = folder / ("test" if i % 5 == 0 else "train") / str(label) / f"{i:04}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(square).resize((32, 32), Image.BICUBIC).save(path, quality=95)


with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    write_digits(scratch / "digits", 400)
    damaged = sorted((scratch / "digits/train/3").iterdir())[2]
    damaged.write_bytes(damaged.read_bytes()[:400])
    recipe = scratch / "digits.yaml"
    recipe.write_text(f"""
model:     {{ name: vit-tiny, image_size: 24, patch_size: 8, width: 32, layers: 2, heads: 2, mlp_width: 64 }}
data:
  name: images
  path: "{scratch / 'digits'}"
  cache: "{scratch / 'cache'}"
  augment: [random_resized_crop, horizontal_flip, trivial_augment, random_erasing, mixup, cutmix]
  crop_scale: [0.5, 1]
  erase_fill: noise
  pack: jpeg
batch:     {{ global: 36, micro: 9 }}
optimizer: {{ lr: 2.0e-3, schedule: constant }}
precision: {{ compute: fp32 }}
parallel:  {{ zero: {{ stage: 2 }}, backend: gloo }}
run:       {{ steps: 18, evaluate: 18, output: "{scratch / 'runs'}" }}
""")
    refused = run("data", "prepare", recipe, "--set", "data.bad_record=stop")
    assert refused.returncode == 65 and str(damaged) in refused.stderr and "damaged or cut off JPEG" in refused.stderr, refused.stderr
    prepared = run("data", "prepare", recipe, "--json")
    expect_success(prepared)
    sizes = json.loads(prepared.stdout)
    assert sizes["train"] == {"samples": 319, "classes": 10} and sizes["test"]["samples"] == 80, sizes
    assert str(damaged) in prepared.stderr and "packed 319 train samples" in prepared.stderr, prepared.stderr
    again = run("data", "prepare", recipe)
    expect_success(again)
    assert "packed" not in again.stderr and str(damaged) in again.stderr, again.stderr

    # Rates of the packed file, and of the files, of which one is damaged.
    for pack in ("jpeg", "pixels", "none"):
        timed = run("bench", "images", recipe, "--set", f"data.pack={pack}", "--threads", "1,2", "--seconds", 0.1, "--json",
                    "--rate", 1000, "--output", scratch / "rates")
        expect_success(timed)
        bench = json.loads(timed.stdout)
        assert json.loads((scratch / "rates/images.json").read_text()) == bench
        assert len((scratch / "rates/images.csv").read_text().splitlines()) == 3 and "of these cores" in (scratch / "rates/images.md").read_text()
        assert [row["threads"] for row in bench["rows"]] == [1, 2] and bench["images"] == (320 if pack == "none" else 319), bench
        for row in bench["rows"]:
            assert row["images_per_s"] > 0 and row["loader_per_s"] > 0 and row["read_s"] > 0 and row["prepare_s"] > 0 and row["copy_s"] > 0, row
            assert abs(row["core_s"] - row["read_s"] - row["decode_s"] - row["prepare_s"]) < 1e-9, row
            # Windows of half the area or more; packed images have 27 pixels on a side.
            whole = 3 * (32 if pack == "none" else 27) ** 2
            assert 0.45 * whole < row["decoded_bytes"] <= whole, row
            assert row["stored_bytes"] == 27 * 27 * 3 if pack == "pixels" else 300 < row["stored_bytes"] < 3000, row
    refused = run("bench", "images", recipe, "--set", "data.pack=none", "--set", "data.bad_record=stop", "--threads", 1, "--seconds", 0.5)
    assert refused.returncode == 65 and str(damaged) in refused.stderr, (refused.returncode, refused.stderr)

    # This rank has no GPU, and packed pixels have no codes.
    for command in (("bench", "images", recipe), ("engine", recipe)):
        refused = run(*command, "--set", "data.decode=gpu")
        assert refused.returncode == 64 and "this rank runs on the CPU" in refused.stderr and "data.decode: cpu" in refused.stderr, refused.stderr
    refused = run("recipe", "check", recipe, "--set", "data.decode=gpu", "--set", "data.pack=pixels")
    assert refused.returncode == 64 and "nothing is decoded" in refused.stdout + refused.stderr, refused

    # 18 steps are two epochs, whose last steps the ranks and micro-batches do not divide.
    curves = {}
    for ranks in (1, 2):
        output = expect_success(run("launch", recipe, "--ranks", ranks, "--set", f"run.output={scratch / str(ranks)}"))
        assert "a random part of 0.5 to 1 of the area" in output, output
        curves[ranks] = losses(only_run(scratch / str(ranks)))
    assert sorted(curves[1]) == list(range(1, 19)), curves
    apart = max(abs(curves[1][step] - curves[2][step]) / curves[1][step] for step in curves[1])
    assert apart < 1e-5, (apart, curves)

    # From the files: the damaged one is named, and another stands in its place or it ends the run.
    files = ["--set", "data.pack=none", "--set", f"run.output={scratch / 'files'}", "--set", "run.steps=9"]
    named = run("launch", recipe, *files)
    expect_success(named)
    assert "the image after it takes its place" in named.stdout + named.stderr, named.stderr
    assert metrics(only_run(scratch / "files"), "evaluation"), "no evaluation"
    stopped = run("launch", recipe, *files, "--set", "data.bad_record=stop")
    assert stopped.returncode == 65 and str(damaged) in stopped.stdout + stopped.stderr, (stopped.returncode, stopped.stdout, stopped.stderr)
    print(f"augment: losses of one and two ranks within {apart:.2g}, {curves[1][1]:.3f} to {curves[1][18]:.3f}")
