"""Real training of the quickstart's recipe in seconds: settings, and what its metrics say."""
import json
import math
import os
import pathlib
import sys
import time

DSTRAIN = os.environ["DSTRAIN"]
ROOT = pathlib.Path(__file__).resolve().parents[2]
SETTINGS = ["run.epochs=0", "batch.global=16", "batch.micro=4", "model.layers=1", "model.width=16",
            "model.mlp_width=16", "model.heads=2", "run.evaluate=never", "run.checkpoint.every=10"]


def settings(output, steps, *more):
    """Words of `dstrain launch`."""
    words = []
    for setting in [*SETTINGS, f"run.steps={steps}", f"run.output={output}", *more]:
        words += ["--set", setting]
    return words


def losses(run):
    """{step: loss}; a step that was made again after a restart must have given the same loss."""
    found = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if entry["kind"] == "step":
            found.setdefault(entry["step"], []).append(entry["loss"])
    return found


def only_run(output):
    runs = [p for p in output.iterdir() if p.is_dir()]
    assert len(runs) == 1, runs
    return runs[0]


def expect_equal(run, whole, steps, tolerance=0.0):
    """All steps were made with the losses of the unbroken run; bit for bit without a tolerance."""
    expected = losses(whole)
    got = losses(run)
    assert sorted(got) == list(range(1, steps + 1)), f"steps {sorted(set(range(1, steps + 1)) - set(got))} are missing"
    for step, values in got.items():
        for value in values:
            assert math.isclose(value, expected[step][-1], rel_tol=tolerance, abs_tol=0), (step, value, expected[step])


def wait_for(condition, what, limit=120, process=None):
    end = time.monotonic() + limit
    while not condition():
        if process is not None and process.poll() is not None:
            sys.exit(f"the job ended ({process.returncode}) while waiting for {what}:\n{process.communicate()[0]}")
        assert time.monotonic() < end, f"waited {limit} s for {what}"
        time.sleep(0.005)


def step_of(output):
    try:
        return max(losses(only_run(output)), default=0)
    except (OSError, AssertionError, json.JSONDecodeError):
        return 0
