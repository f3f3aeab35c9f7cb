"""Tensor ranks end to end: plan, one rank's losses and evaluation, a checkpoint taken up on another layout, and export."""
import pathlib
import shutil
import tempfile

from support import expect_success, losses, metrics, only_run, run

SHORT = ["--set", "run.epochs=0", "--set", "run.steps=8", "--set", "batch.global=48", "--set", "batch.micro=8",
         "--set", "optimizer.warmup_steps=2", "--set", "run.evaluate=4", "--set", "run.checkpoint.every=4",
         "--set", "model.layers=2"]


def launch(output, ranks, *more):
    return run("launch", "recipes/quickstart.yaml", "--ranks", ranks, "--set", f"run.output={output}", *SHORT, *more)


def tensor(degree):
    return ["--set", f"parallel.tensor={degree}"]


def check_near(found, expected, kind):
    assert found.keys() == expected.keys(), (kind, found, expected)
    for step, value in expected.items():
        assert abs(found[step] - value) <= 2e-5 * abs(value), (kind, step, found[step], value)


def evaluations(directory):
    return {step: o["loss"] for step, o in metrics(directory, "evaluation").items()}


with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    text = expect_success(run("plan", "recipes/quickstart.yaml", "--ranks", 4, *SHORT, *tensor(2)))
    assert "tensor 2" in text, text

    expect_success(launch(scratch / "one", 1))
    one = only_run(scratch / "one")
    expect_success(launch(scratch / "two", 2, *tensor(2)))
    two = only_run(scratch / "two")
    check_near(losses(two), losses(one), "step")
    check_near(evaluations(two), evaluations(one), "evaluation")

    # What two tensor ranks saved goes on beside two data ranks, and is exported whole.
    resumed = scratch / "resumed" / two.name
    shutil.copytree(two, resumed)
    shutil.rmtree(resumed / "checkpoints" / "step-00000008")
    text = expect_success(launch(scratch / "resumed", 4, *tensor(2), "--resume", resumed))
    assert "resumed at step 4" in text, text
    check_near(losses(resumed), losses(one), "resumed")
    for directory in (one, two):
        expect_success(run("checkpoint", "export", directory, scratch / f"export-{directory.parent.name}"))
    sizes = [(scratch / f"export-{name}" / "model.safetensors").stat().st_size for name in ("one", "two")]
    assert sizes[0] == sizes[1], sizes

    failed = launch(scratch / "refused", 3, *tensor(3))
    text = failed.stdout + failed.stderr
    assert failed.returncode == 64 and "parallel.tensor: 3 must divide 4 heads" in text, text
print("tensor: ok")
