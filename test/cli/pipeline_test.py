"""A pipeline on CPU ranks: one rank's losses and evaluation, saves under one layout and resumes under others, kill -9, bad degrees."""
import os
import pathlib
import shutil
import signal
import tempfile
import time

from support import expect_success, losses, metrics, only_run, rank_processes, run, start

STEPS = 12
SHORT = ["--set", "run.epochs=0", "--set", f"run.steps={STEPS}", "--set", "batch.global=24", "--set", "batch.micro=4",
         "--set", "run.evaluate=6", "--set", "data.subset=200", "--set", "run.checkpoint.every=4", "--set", "run.checkpoint.keep=3"]


def arguments(output, ranks, *settings):
    words = [word for setting in settings for word in ("--set", setting)]
    return ["launch", "recipes/quickstart.yaml", "--ranks", str(ranks), "--set", f"run.output={output}", *SHORT, *words]


def near(found, expected, tolerance=1e-5):
    assert sorted(found) == sorted(expected), (sorted(found), sorted(expected))
    for step, value in expected.items():
        assert abs(found[step] - value) <= tolerance * abs(value), (step, found[step], value)


def evaluations(directory):
    return {step: line["loss"] for step, line in metrics(directory, "evaluation").items()}


with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    expect_success(run(*arguments(scratch / "whole", 1)))
    whole = only_run(scratch / "whole")
    expected = losses(whole)
    assert len(expected) == STEPS and len(evaluations(whole)) == 2, (expected, evaluations(whole))

    # Stages alone, and beside data ranks.
    layouts = {"pipe3": (3, ["parallel.pipeline=3"]), "pipe2x2": (4, ["parallel.pipeline=2", "parallel.zero.stage=3"])}
    for name, (ranks, settings) in layouts.items():
        text = expect_success(run(*arguments(scratch / name, ranks, *settings)))
        assert "pipeline" in text and "activations between stages" in text, text
        near(losses(only_run(scratch / name)), expected)
        near(evaluations(only_run(scratch / name)), evaluations(whole))

    # Saved under any layout, resumed under any other.
    layouts["alone"] = (1, [])
    layouts["data2"] = (2, ["parallel.zero.stage=2"])
    for saved in ("pipe3", "pipe2x2"):
        source = only_run(scratch / saved)
        for resumed, (ranks, settings) in layouts.items():
            again = scratch / f"{saved}-{resumed}" / source.name
            shutil.copytree(source, again)
            for checkpoint in (again / "checkpoints").glob("step-*"):
                if int(checkpoint.name.split("-")[1]) > 4:
                    shutil.rmtree(checkpoint)
            text = expect_success(run(*arguments(again.parent, ranks, *settings), "--resume", again))
            assert "resumed at step 4" in text, text
            near(losses(again), expected)

    # A rank that is killed is named, and no rank waits for it.
    process = start(*arguments(scratch / "killed", 3, "parallel.pipeline=3", "run.steps=100000"))
    while not list((scratch / "killed").glob("*/checkpoints/step-*/MANIFEST.json")):
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.02)
    directory = only_run(scratch / "killed")
    os.kill(rank_processes(directory)[1], signal.SIGKILL)
    text = process.communicate(timeout=60)[0]
    assert process.returncode != 0 and "rank 1 failed at step" in text and "SIGKILL" in text, text
    # Degrees that cannot be.
    for ranks, setting, words in ((4, "parallel.pipeline=3", ["parallel.pipeline: 3 does not divide the 4 ranks", "use 1, 2, 4"]),
                                  (8, "parallel.pipeline=8", ["8 stages", "6 blocks", "use at most 6"])):
        refused = run("plan", "recipes/quickstart.yaml", "--ranks", ranks, "--set", setting)
        assert refused.returncode != 0, refused.stdout
        for word in words:
            assert word in refused.stderr, (word, refused.stderr)
