"""A convolutional network learns the digits to 98.5 %; its export starts another run where it ended; tiny versions of the
recipes of every family train under their strategies and are saved."""
import json
import tempfile
import time

from support import ROOT, expect_success, metrics, only_run, run

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
    config = json.loads(open(f"{exported}/config.json").read())
    assert config["architecture"] == "cnn-basic" and config["num_classes"] == 10, config
    assert config["pretrained_cfg"]["input_size"] == [1, 8, 8] and len(config["pretrained_cfg"]["mean"]) == 1, config
    # The running statistics came along: one step that changes nothing is evaluated as the run ended.
    again = f"{scratch}/again"
    expect_success(run("launch", DIGITS, "--ranks", 1, "--set", f"model.weights={exported}", "--set", f"run.output={again}", "--set", "run.epochs=0",
                       "--set", "run.steps=1", "--set", "run.evaluate=1", "--set", "optimizer.warmup_steps=0", "--set", "optimizer.lr=1e-12",
                       "--set", "batch_norm.momentum=1e-9"))
    (first,) = metrics(only_run(again), "evaluation").values()
    assert abs(first["accuracy"] - last["accuracy"]) < 1e-6, (first, last)
    assert abs(first["loss"] - last["loss"]) < 1e-4 * last["loss"], (first, last)

    verified = expect_success(run("verify", DIGITS, "--ranks", 2, "--steps", 3))
    assert "passed" in verified, verified

TINY = ["model.image_size=64", "optimizer.lr=0.01", "precision.compute=fp32", "data.samples=32", "run.steps=2", "batch.global=16", "batch.micro=4",
        "parallel.backend=gloo"]
for recipe in sorted((ROOT / "recipes/cnn").glob("*_random_zero3.yaml")):
    with tempfile.TemporaryDirectory() as scratch:
        settings = [word for s in [*TINY, f"run.output={scratch}"] for word in ("--set", s)]
        if "vgg" in recipe.read_text():
            continue  # 130M parameters, whatever the image
        expect_success(run("launch", recipe, "--ranks", 2, *settings))
        steps = metrics(only_run(scratch))
        assert len(steps) == 2 and all(0 < step["loss"] < 20 for step in steps.values()), (recipe, steps)
print("cnn: ok")
