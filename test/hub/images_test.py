"""Images of the Hub by name: launch fetches, packs once and trains as from the same images in a folder; a model of the tree whose folder
is missing comes from the Hub."""
import json
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(pathlib.Path(__file__).parent), str(ROOT / "test/data")]
from server import Hub, run  # noqa: E402

try:
    import numpy
    import torch
    import transformers
    from PIL import Image
    from parquet_files import classes_of, image_bytes, write_parquet
except ImportError as missing:
    print(f"skipped: {missing}")
    raise SystemExit(77)

RECIPE = """
model:     { name: cnn-basic, image_size: 32, channels: 3 }
data:      { name: NAME, path: "PATH", workers: 1 }
batch:     { global: 20, micro: 10 }
precision: { compute: fp32 }
parallel:  { backend: gloo }
optimizer: { name: adamw, lr: 1e-3 }
run:       { epochs: 2, evaluate: epoch, checkpoint: { every: never } }
"""
draw = numpy.random.default_rng(5)


def losses(folder):
    run_folder, = pathlib.Path(folder).iterdir()
    lines = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["loss"]) for line in lines if "loss" in line], (run_folder / "recipe.yaml").read_text()


with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    hub, home = Hub(scratch), scratch / "home"
    home.mkdir()
    binary, parquet = scratch / "binary", scratch / "parquet"
    binary.mkdir()
    for split, count in (("train", 60), ("test", 20)):
        data = draw.integers(0, 256, (count, 3072), dtype=numpy.uint8)
        fine = draw.integers(0, 100, count).tolist()
        (binary / f"{split}.bin").write_bytes(b"".join(bytes([fine[i] // 5, fine[i]]) + data[i].tobytes() for i in range(count)))
        files = [image_bytes(data[i].reshape(3, 32, 32).transpose(1, 2, 0)) for i in range(count)]
        columns = {"img": files, "fine_label": fine, "coarse_label": [label // 5 for label in fine]}
        write_parquet(parquet / "cifar100", split, columns, {"fine_label": classes_of(100), "coarse_label": classes_of(20)})
    hub.add_folder("uoft-cs/cifar100", parquet, "datasets")
    food = scratch / "food"
    for part, count in (("train", 40), ("validation", 10)):
        labels = draw.integers(0, 101, count).tolist()
        files = [image_bytes(Image.fromarray(draw.integers(0, 256, (60, 50 + i, 3), dtype=numpy.uint8)), "JPEG") for i in range(count)]
        write_parquet(food / "data", part, {"image": files, "label": labels}, {"label": classes_of(101)}, parts=2)
    hub.add_folder("ethz/food101", food, "datasets")

    recipe = scratch / "recipe.yaml"

    def launch(name, path, output, *words, at=home, **more):
        recipe.write_text(RECIPE.replace("NAME", name).replace("PATH", str(path)))
        return run(hub, at, "launch", recipe, "--ranks", 2, "--set", f"run.output={scratch / output}", *words, **more)

    def said(done):
        return done.stdout + done.stderr

    # The same losses as from the binary version; the run's recipe holds the commit; packed once.
    launch("cifar100", binary, "by_binary")
    launch("cifar100", "hf://datasets/uoft-cs/cifar100", "by_name")
    expected, _ = losses(scratch / "by_binary")
    found, resolved = losses(scratch / "by_name")
    assert len(expected) >= 6 and found == expected, (expected, found)
    assert f"hf://datasets/uoft-cs/cifar100@{hub.commit('datasets', 'uoft-cs/cifar100')}" in resolved, resolved
    hub.log.clear()
    packs = {path: path.stat().st_mtime_ns for path in (home / "dstrain").rglob("*.pixels")}
    assert len(packs) == 2, packs
    launch("cifar100", "uoft-cs/cifar100", "again", HF_HUB_OFFLINE="1")
    assert packs == {path: path.stat().st_mtime_ns for path in (home / "dstrain").rglob("*.pixels")} and not hub.log, hub.log

    # Photographs, prepared ahead; fewer of them.
    recipe.write_text(RECIPE.replace("NAME", "food101").replace("PATH", "hf://datasets/ethz/food101"))
    counted = json.loads(run(hub, home, "data", "prepare", recipe, "--json").stdout)
    assert counted == {"train": {"samples": 40, "classes": 101}, "test": {"samples": 10, "classes": 101}}, counted
    told = said(launch("food101", "hf://datasets/ethz/food101", "food_run", "--set", "data.subset=20"))
    assert "packed" not in told and "2 train steps" in told, told

    # What is read from no data set of the Hub, and a column that is not there.
    for words in (["data.name=digits"], ["data.name=frames"]):
        done = run(hub, home, "recipe", "check", recipe, "--set", *words, code=64)
        assert "is read from no data set of the Hub" in done.stderr, done.stderr
    done = launch("food101", "hf://datasets/ethz/food101", "none", "--set", "data.label=fine_label", code=None)
    assert done.returncode != 0 and "no column 'fine_label'" in said(done) and "it has label" in said(done), done

    # From nothing: the model's folder is not there, its repository is.
    config = transformers.ViTConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, image_size=32, patch_size=8, num_labels=7)
    torch.manual_seed(1)
    transformers.ViTForImageClassification(config).save_pretrained(scratch / "vit")
    hub.add_folder("google/vit-base-patch16-224", scratch / "vit")
    tree, fresh = ROOT / "recipes/vit/vit-base_cifar100_lora.yaml", scratch / "fresh"
    small = ["--set", "data.path=hf://datasets/uoft-cs/cifar100", "--set", "data.subset=16", "--set", "batch.global=8", "--set", "batch.micro=4",
             "--set", "run.epochs=1", "--set", "precision.compute=fp32", "--set", "parallel.backend=gloo"]
    told = said(run(hub, fresh, "launch", tree, "--ranks", 1, *small, "--set", f"run.output={scratch / 'vit_run'}"))
    assert "model.weights: models/vit-base-patch16-224 is not there, hf://google/vit-base-patch16-224 takes its place" in told, told
    resolved = losses(scratch / "vit_run")[1]
    assert f"hf://google/vit-base-patch16-224@{hub.commit('models', 'google/vit-base-patch16-224')}" in resolved, resolved
    exported = scratch / "an export"
    told = run(hub, fresh, "checkpoint", "export", next((scratch / "vit_run").iterdir()), exported).stdout
    assert told.splitlines()[-1] == f"share it: hf upload ORG/NAME '{exported}'", told
print("images: ok")
