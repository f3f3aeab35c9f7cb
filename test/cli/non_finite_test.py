"""Values that are not finite: never counted, never saved over a good checkpoint, and the end of a run whose steps are all skipped."""
import json
import pathlib
import re
import tempfile

from support import expect_success, metrics, only_run, run

SETTINGS = ["--set", "model.layers=2", "--set", "model.width=32", "--set", "model.mlp_width=32", "--set", "run.epochs=0",
            "--set", "batch.global=16", "--set", "batch.micro=8", "--set", "run.checkpoint.every=5", "--set",
            "run.checkpoint.keep=1", "--set", "optimizer.warmup_steps=0", "--set", "optimizer.schedule=constant"]
# Beyond fp32: the first update makes every weight nan.
BROKEN = ["--set", "optimizer.lr=1e39", "--set", "optimizer.clip_norm=0", "--set", "run.checkpoint.every=1"]


def launch(output, ranks, *more):
    result = run("launch", "recipes/quickstart.yaml", "--ranks", ranks, "--set", f"run.output={output}", *SETTINGS, *more)
    return result.returncode, result.stdout + result.stderr


def good_run(output, ranks):
    code, text = launch(output, ranks, "--set", "run.steps=5", "--set", "run.evaluate=never")
    assert code == 0, text
    return only_run(output)


def only_good_checkpoint(directory):
    assert [p.name for p in (directory / "checkpoints").iterdir()] == ["step-00000005"], list((directory / "checkpoints").iterdir())
    expect_success(run("checkpoint", "verify", directory))


def test_all_skipped(folder, ranks):
    directory = good_run(folder / f"skipped{ranks}", ranks)
    code, text = launch(folder / f"skipped{ranks}", ranks, "--resume", directory, *BROKEN, "--set", "run.steps=100", "--set",
                        "run.evaluate=3", "--set", "precision.max_skipped=4")
    assert code == 93, (code, text)
    assert "steps 7 to 10 were all skipped (precision.max_skipped: 4)" in text, text
    assert "the weights of " in text and " are not finite already, first in " in text, text
    assert "is not finite" in text and "acc n/a" in text and "accuracy n/a, top-5 n/a, loss nan" in text, text
    assert re.search(r"checkpoint failed: rank \d: '.*' holds (nan|-?inf) at element", text), text  # the save after step 6
    assert json.loads((directory / "failure.json").read_text())["exit_code"] == 93
    steps = metrics(directory)
    assert sorted(steps) == list(range(1, 11)), sorted(steps)
    for step, line in steps.items():
        assert (line["accuracy"] is None) == (step > 6), line
        assert (line["loss"] == "nan") == (step > 6), line
    assert all(line["accuracy"] is None and line["top5"] is None for line in metrics(directory, "evaluation").values())
    only_good_checkpoint(directory)


def test_end_of_run(folder):
    """Too few steps to give up: the last state is still no checkpoint."""
    directory = good_run(folder / "end", 2)
    code, text = launch(folder / "end", 2, "--resume", directory, *BROKEN, "--set", "run.steps=8", "--set", "run.evaluate=never")
    assert code == 93, (code, text)
    assert "the state after step 8 is not saved" in text and "step-00000005" in text and "done after" not in text, text
    only_good_checkpoint(directory)


with tempfile.TemporaryDirectory() as scratch:
    folder = pathlib.Path(scratch)
    for ranks in (1, 2):
        test_all_skipped(folder, ranks)
    test_end_of_run(folder)
print("non_finite: ok")
