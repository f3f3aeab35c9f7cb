"""Resume is exact: bit for bit at equal world size, within 1e-5 at any other; damage is found and the checkpoint before it taken."""
import json
import signal
import tempfile
import pathlib

from support import copy_until, expect_success, losses, metrics, only_run, run, start

STEPS = 12
HALF = STEPS // 2
SHORT = ["--set", "run.epochs=0", "--set", f"run.steps={STEPS}", "--set", "batch.global=48", "--set", "batch.micro=8",
         "--set", "model.layers=2", "--set", "model.width=64", "--set", "model.mlp_width=64", "--set", "model.heads=2",
         "--set", "run.evaluate=never", "--set", f"run.checkpoint.every={STEPS // 4}", "--set", "run.checkpoint.keep=3"]


def launch(output, ranks, *more, recipe="recipes/quickstart.yaml"):
    return expect_success(run("launch", recipe, "--ranks", ranks, "--set", f"run.output={output}", *SHORT, *more))


def write_cifar(folder, first, others):
    """CIFAR-10 of so many images in its first training file and in the others."""
    folder.mkdir(exist_ok=True)
    for name, count in [("data_batch_1", first), *((f"data_batch_{i}", others) for i in range(2, 6)), ("test_batch", 4)]:
        (folder / f"{name}.bin").write_bytes(b"".join(bytes([i % 10]) + bytes([20 * i % 256]) * 3072 for i in range(count)))


with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    launch(scratch / "whole", 4)
    whole = only_run(scratch / "whole")
    expected = losses(whole)
    assert sorted(expected) == list(range(1, STEPS + 1)), sorted(expected)

    # The moments of another optimizer are not taken for its own.
    other = run("launch", "recipes/quickstart.yaml", "--ranks", 4, *SHORT, "--set", "run.steps=24", "--set", "optimizer.name=lion", "--resume", whole)
    assert other.returncode != 0 and "of another optimizer: lion has no state 'optimizer.exp_avg_sq/" in other.stdout + other.stderr, other
    assert losses(whole) == expected

    for ranks in (4, 3, 2, 1):
        resumed = scratch / f"on{ranks}" / whole.name
        copy_until(whole, resumed, HALF)
        text = launch(scratch / f"on{ranks}", ranks, "--resume", resumed)
        assert f"resumed at step {HALF}" in text and "changed since the checkpoint" not in text, text
        found = losses(resumed)
        assert sorted(found) == list(range(1, STEPS + 1)), sorted(found)
        for step in range(HALF + 1, STEPS + 1):
            tolerance = 0 if ranks == 4 else 1e-5 * abs(expected[step])
            assert abs(found[step] - expected[step]) <= tolerance, (ranks, step, found[step], expected[step])

    # What changes numbers is named, a line each; where the run writes and how it reads is not.
    changed = scratch / "changed" / whole.name
    copy_until(whole, changed, HALF)
    manifest = changed / f"checkpoints/step-{HALF:08d}/MANIFEST.json"
    assert json.loads(manifest.read_text())["state"]["train_samples"] == 1437, manifest
    text = launch(changed.parent, 4, "--resume", changed, "--set", "optimizer.lr=0.0005", "--set", "run.seed=7", "--set", "data.workers=1",
                  "--set", f"run.steps={STEPS + 1}")
    lines = [line.split("changed since the checkpoint: ")[1] for line in text.splitlines() if "changed since the checkpoint" in line]
    assert sorted(line.split(":")[0] for line in lines) == ["optimizer.lr", "run.seed", "run.steps"], lines
    assert "run.seed: 7, was 42" in lines and f"run.steps: {STEPS + 1}, was {STEPS}" in lines, lines

    # Images that came after the checkpoint, in its first epoch; later the number of samples shows it.
    images = scratch / "images"
    write_cifar(images, 4, 4)
    settings = ["--set", "data.name=cifar10", "--set", f"data.path={images}", "--set", "model.image_size=32", "--set", "model.patch_size=16",
                "--set", "model.channels=3", "--set", "batch.global=4", "--set", "batch.micro=4", "--set", "run.checkpoint.every=1"]
    text = launch(scratch / "grown", 1, *settings, "--set", "run.steps=2")
    assert "data_batch_1.bin holds 4 images; the published file holds 10000" in text, text
    write_cifar(images, 12, 4)
    text = launch(scratch / "grown", 1, *settings, "--set", "run.steps=3", "--resume", only_run(scratch / "grown"))
    assert "changed since the checkpoint: 28 training samples, were 20" in text, text

    # Another ZeRO stage; train/layout_matrix_test.cpp has any from any other.
    resumed = scratch / "stage3" / whole.name
    copy_until(whole, resumed, HALF)
    launch(resumed.parent, 3, "--resume", resumed, "--set", "parallel.zero.stage=3")
    found = losses(resumed)
    for step in range(HALF + 1, STEPS + 1):
        assert abs(found[step] - expected[step]) <= 1e-5 * abs(expected[step]), (step, found[step], expected[step])

    # Every optimizer: bit for bit at the same number of ranks, and under another stage.
    for name, keys in (("lion", ["optimizer.name=lion", "optimizer.lr=1e-4"]), ("muon", ["optimizer.name=muon", "optimizer.lr=2e-3"]),
                       ("rmsprop", ["optimizer.name=rmsprop", "optimizer.rmsprop=tensorflow", "optimizer.lr=1e-3"])):
        options = [word for key in keys for word in ("--set", key)]
        launch(scratch / name, 2, *options)
        first = only_run(scratch / name)
        for stage, tolerance in ((2, 0), (3, 1e-5)):
            again = scratch / f"{name}{stage}" / first.name
            copy_until(first, again, HALF)
            launch(again.parent, 2, "--resume", again, "--set", f"parallel.zero.stage={stage}", *options)
            found, wanted = losses(again), losses(first)
            for step in range(HALF + 1, STEPS + 1):
                assert abs(found[step] - wanted[step]) <= tolerance * abs(wanted[step]), (name, stage, step, found[step], wanted[step])

    # A loss scale that was looked for, and the steps that its hysteresis took up meanwhile.
    options = [word for key in ("precision.compute=fp16", "precision.loss_scale.initial=16777216", "precision.loss_scale.hysteresis=3",
                                "precision.loss_scale.growth_interval=1000") for word in ("--set", key)]
    launch(scratch / "scaled", 2, *options)
    first = only_run(scratch / "scaled")
    again = scratch / "scaled_again" / first.name
    copy_until(first, again, HALF)
    launch(again.parent, 2, "--resume", again, *options)
    assert metrics(again).keys() == metrics(first).keys() and losses(again) == losses(first)
    wanted, found = (json.loads((run / f"checkpoints/step-{STEPS:08d}/MANIFEST.json").read_text())["state"] for run in (first, again))
    assert wanted["tolerated_steps"] == 2 and 1 < wanted["loss_scale"] < 2**24, wanted
    assert {**found, "recipe": ""} == {**wanted, "recipe": ""}, (found, wanted)

    # A flipped bit in the newest checkpoint: named, and the one before is taken.
    damaged = scratch / "damaged" / whole.name
    newest = 3 * STEPS // 4
    copy_until(whole, damaged, newest)
    victim = next((damaged / "checkpoints" / f"step-{newest:08d}").glob("*.safetensors"))
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 4
    victim.write_bytes(data)
    text = launch(scratch / "damaged", 4, "--resume", "auto")
    assert victim.name in text and f"resumed at step {HALF}" in text, text
    assert losses(damaged) == expected

    # A rank without a launcher answers a signal at once: its step may take minutes.
    process = start("engine", "recipes/quickstart.yaml", "--set", f"run.output={scratch / 'alone'}", *SHORT, "--set", "run.steps=100000")
    while not list((scratch / "alone").glob("*/checkpoints/step-*0")):
        assert process.poll() is None, process.stdout.read()
    process.send_signal(signal.SIGTERM)
    text = process.communicate(timeout=60)[0]
    assert process.returncode == 0 and text.count("asked to stop: finishing this step, saving, ending") == 1, (process.returncode, text)

    # A polite signal: the step under way is finished and saved.
    process = start("launch", "recipes/quickstart.yaml", "--ranks", "2", "--set", f"run.output={scratch / 'stopped'}",
                    *SHORT, "--set", "run.steps=100000")
    while not list((scratch / "stopped").glob("*/checkpoints/step-*0")):
        assert process.poll() is None, process.stdout.read()
    process.send_signal(signal.SIGINT)
    text = process.communicate(timeout=60)[0]
    stopped = only_run(scratch / "stopped")
    newest = max(int(p.name.split("-")[1]) for p in (stopped / "checkpoints").glob("step-????????"))
    assert newest == max(metrics(stopped)), (newest, max(metrics(stopped)), text)
print("resume: ok")
