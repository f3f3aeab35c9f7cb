"""A convolutional network learns the digits to 98.5 %; its export starts another run where it ended; tiny versions of the
recipes of every family train under their strategies and are saved."""
import json
import struct
import tempfile
import time
import zlib
from pathlib import Path

from support import ROOT, expect_success, metrics, only_run, recipe_text, run, tree_recipes

DIGITS = "recipes/cnn/cnn-basic_digits.yaml"

with tempfile.TemporaryDirectory() as scratch:
    begin = time.monotonic()
    expect_success(run("launch", DIGITS, "--ranks", 2, "--set", f"run.output={scratch}"))
    seconds = time.monotonic() - begin
    directory = only_run(scratch)
    evaluations = metrics(directory, "evaluation")
    last = evaluations[max(evaluations)]
    print(f"test accuracy {last['accuracy']:.4f} on {last['targets']} samples in {seconds:.0f} s")
    assert last["accuracy"] >= 0.985, last
    assert last["targets"] == 360, last

    exported = f"{scratch}/exported"
    text = expect_success(run("checkpoint", "export", directory, exported, "--names", "timm"))
    assert "under the names of timm" in text, text
    listed = expect_success(run("checkpoint", "inspect", f"{exported}/model.safetensors"))
    assert ".weight: F32" in listed or ".weight: float32" in listed, listed
    config = json.loads(open(f"{exported}/config.json").read())
    assert config["architecture"] == "cnn-basic" and config["num_classes"] == 10, config
    assert config["pretrained_cfg"]["input_size"] == [1, 8, 8] and len(config["pretrained_cfg"]["mean"]) == 1, config
    assert config["label_names"] == [str(digit) for digit in range(10)], config
    # The running statistics came along: one step that changes nothing is evaluated as the run ended.
    again = f"{scratch}/again"
    expect_success(run("launch", DIGITS, "--ranks", 1, "--set", f"model.weights={exported}", "--set", f"run.output={again}", "--set", "run.epochs=0",
                       "--set", "run.steps=1", "--set", "run.evaluate=1", "--set", "optimizer.warmup_steps=0", "--set", "optimizer.lr=1e-12",
                       "--set", "batch_norm.momentum=1e-9"))
    (first,) = metrics(only_run(again), "evaluation").values()
    assert abs(first["accuracy"] - last["accuracy"]) < 1e-6, (first, last)
    assert abs(first["loss"] - last["loss"]) < 1e-4 * last["loss"], (first, last)

    # 1,437 images by 19 leave 12 in the last step.
    small = ["--set", "batch.global=19", "--set", "batch.micro=19", "--set", "run.evaluate=never", "--set", "run.epochs=1"]
    text = expect_success(run("launch", DIGITS, "--ranks", 1, *small, "--set", f"run.output={scratch}/fill"))
    assert "the last step of each epoch has 12 of 19 samples" in text and "as few as 12" in text and "data.last: drop" in text, text
    filled = metrics(only_run(f"{scratch}/fill"))
    text = expect_success(run("launch", DIGITS, "--ranks", 1, *small, "--set", "data.last=drop", "--set", f"run.output={scratch}/drop"))
    assert "last step of each epoch" not in text, text
    dropped = metrics(only_run(f"{scratch}/drop"))
    assert max(filled) == 76 and max(dropped) == 75, (max(filled), max(dropped))
    assert all(dropped[step]["loss"] == filled[step]["loss"] for step in range(1, 5)), "the samples of an epoch have their order"
    none = run("launch", DIGITS, "--ranks", 1, *small, "--set", "batch.global=2000", "--set", "batch.micro=2000", "--set", "data.last=drop",
               "--set", f"run.output={scratch}/none")
    assert none.returncode == 64 and "data.last: drop leaves no step" in none.stdout + none.stderr, none

    verified = expect_success(run("verify", DIGITS, "--ranks", 2, "--steps", 3))
    assert "passed" in verified, verified
    # One rank has statistics of the samples that are a micro-batch of both.
    over_ranks = ["--set", "batch_norm.over=ranks", "--set", "batch.micro=8"]
    assert "passed" in expect_success(run("verify", DIGITS, "--ranks", 2, "--steps", 2, *over_ranks))

# Random images have the classes and the channels of the recipe's model.
timed = expect_success(run("bench", "step", DIGITS, "--warmup", 1, "--steps", 2))
assert "img/s" in timed, timed

# A folder of weights that is not there is said once, not for each phase.
planned = run("plan", "recipes/cnn/mobilenet-v2_food101_finetune.yaml", "--set", "model.weights=/nowhere")
expect_success(planned)
assert planned.stderr.count("/nowhere") == 1 and planned.stdout.count("phase ") == 2, planned.stderr

TINY = ["model.image_size=64", "optimizer.lr=0.01", "precision.compute=fp32", "data.samples=32", "run.steps=2", "batch.global=16", "batch.micro=4",
        "parallel.backend=gloo"]
for recipe in (path for path in tree_recipes("cnn") if path.name.endswith("_random_zero3.yaml")):
    with tempfile.TemporaryDirectory() as scratch:
        clips = ["data.frames=2"] if "cnn-lstm" in recipe.name else []
        settings = [word for s in [*TINY, *clips, f"run.output={scratch}"] for word in ("--set", s)]
        if "vgg" in recipe_text(recipe):
            continue  # 130M parameters, whatever the image
        expect_success(run("launch", recipe, "--ranks", 2, *settings))
        steps = metrics(only_run(scratch))
        assert len(steps) == 2 and all(0 < step["loss"] < 20 for step in steps.values()), (recipe, steps)



def write_square(path, x, y):
    """A PNG of 24 x 24 black pixels with a white square of 6 x 6."""
    rows = b"".join(b"\0" + bytes(255 * (x <= c < x + 6 and y <= r < y + 6) for c in range(24) for _ in range(3)) for r in range(24))
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))  # noqa: E731
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 24, 24, 8, 2, 0, 0, 0)) +
                     chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


# Clips: a square that moves to the right or to the left, which one frame does not show.
with tempfile.TemporaryDirectory() as scratch:
    for split, clips in (("train", 24), ("test", 8)):
        for label, way in (("left", -1), ("right", 1)):
            for clip in range(clips):
                folder = Path(scratch) / "clips" / split / label / f"{clip:02}"
                folder.mkdir(parents=True)
                for frame in range(4):
                    write_square(folder / f"{frame}.png", 9 + way * (3 * frame - 5), 2 + clip % 12)
    settings = ["model.trunk=cnn-basic", "model.image_size=24", "model.width=16", "model.classes=0", "model.dropout=0", f"data.path={scratch}/clips", "data.frames=4",
                "data.augment=[]", "data.workers=1", "batch.global=16", "batch.micro=4", "precision.compute=fp32", "parallel.backend=gloo",
                "optimizer.name=adamw", "optimizer.lr=0.004", "optimizer.warmup_steps=0", "optimizer.label_smoothing=0", "run.epochs=12", "run.checkpoint.keep=1"]
    clips = [word for s in [*settings, f"run.output={scratch}/runs"] for word in ("--set", s)]
    recipe = "recipes/cnn/cnn-lstm_ucf101_zero3.yaml"
    expect_success(run("launch", recipe, "--ranks", 2, *clips))
    directory = only_run(f"{scratch}/runs")
    evaluations = metrics(directory, "evaluation")
    assert evaluations[max(evaluations)]["accuracy"] >= 0.9, evaluations
    assert "passed" in expect_success(run("verify", recipe, "--ranks", 2, "--steps", 3, *clips))
    expect_success(run("checkpoint", "export", directory, f"{scratch}/exported"))
    config = json.loads(open(f"{scratch}/exported/config.json").read())
    assert config["architecture"] == "cnn-lstm" and config["trunk"] == "cnn-basic", config
print("cnn: ok")
