"""Checkpoints by the clock on several ranks, and goodput with its stops in the report of the run."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

from support import expect_success, only_run, rank_processes, run, start

SETTINGS = ["--ranks", "2", "--set", "run.epochs=0", "--set", "run.steps=1000000", "--set", "batch.global=8", "--set", "batch.micro=4",
            "--set", "model.layers=1", "--set", "model.width=16", "--set", "model.mlp_width=16", "--set", "model.heads=2", "--set",
            "run.evaluate=never", "--set", "run.checkpoint.keep=100"]
QUICKSTART = "recipes/quickstart.yaml"


def events(directory):
    """The lines that are whole by now."""
    lines = (directory / "events.jsonl").read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def of_kind(directory, kind):
    return [event for event in events(directory) if event["kind"] == kind]


def wait_for(process, condition, limit=60):
    end = time.monotonic() + limit
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def test_refusals():
    for setting, word in (("run.evaluate=10m", "run.evaluate"), ("run.checkpoint.every=0s", "2h) or auto"), ("run.checkpoint.every=10d", "2h) or auto"),
                          ("run.checkpoint.every=1.5h", "2h) or auto"), ("trace.every=auto", "trace.every")):
        done = run("recipe", "check", QUICKSTART, "--set", setting)
        assert done.returncode == 64 and word in done.stdout + done.stderr, (setting, done)


def test_auto_says_why(scratch):
    text = expect_success(run("launch", QUICKSTART, *SETTINGS, "--set", "run.steps=3", "--set", f"run.output={scratch / 'auto'}", "--set",
                              "run.checkpoint.every=auto"))
    assert "checkpoints every 1h 00m: a job of 2 ranks stops about every" in text, text
    assert [event["step"] for event in of_kind(only_run(scratch / "auto"), "checkpoint_saved")] == [3]


def test_saves_and_goodput(scratch):
    output = scratch / "runs"
    process = start("launch", QUICKSTART, *SETTINGS, "--set", f"run.output={output}", "--set", "run.checkpoint.every=1s", "--max-restarts", "1")
    wait_for(process, lambda: output.exists() and list(output.glob("*/events.jsonl")))
    directory = only_run(output)
    wait_for(process, lambda: len(of_kind(directory, "checkpoint_saved")) >= 3)
    first = of_kind(directory, "checkpoint_saved")
    os.kill(rank_processes(directory)[1], signal.SIGKILL)
    wait_for(process, lambda: len(of_kind(directory, "first_step")) == 2)
    saved = len(of_kind(directory, "checkpoint_saved"))
    wait_for(process, lambda: len(of_kind(directory, "checkpoint_saved")) > saved)
    process.send_signal(signal.SIGTERM)
    text = process.communicate(timeout=60)[0]
    assert process.returncode == 75, text
    assert "every: 1s" in (directory / "recipe.yaml").read_text()

    steps = [event["step"] for event in first]
    assert steps == sorted(set(steps)) and len(steps) >= 3, steps
    for event in first:
        assert 0 <= float(event["stall_s"]) < 60, event
    expect_success(run("checkpoint", "verify", directory))

    failed, = of_kind(directory, "failed")
    assert failed["failure"] == "signal" and failed["rank"] == 1 and failed["exit_code"] == 137, failed
    launched = of_kind(directory, "launched")
    assert [event["ranks"] for event in launched] == [2, 2] and [event["start"] for event in launched] == [0, 1], launched
    resumed, = of_kind(directory, "resumed")
    goodput = json.loads(expect_success(run("report", directory, "--json")))["runs"][0]["goodput"]
    rows = {row["what"]: row["seconds"] for row in goodput["rows"]}
    assert abs(sum(rows.values()) - goodput["wall_s"]) <= 0.01 * goodput["wall_s"], goodput
    assert goodput["starts"] == 2 and 0 < goodput["share"] < 1 and rows["steps that count"] > 0, goodput
    stop, = goodput["stops"]
    assert stop["class"] == "signal" and stop["rank"] == 1, stop
    assert stop["lost_steps"] >= 0 and stop["step"] - stop["lost_steps"] <= resumed["step"], (stop, resumed)
    text = expect_success(run("report", directory))
    assert "Goodput" in text and "stops by class" in text, text


def test_skipped_while_one_is_written(scratch):
    """A disk on which a save takes longer than the time between two: the next one is left out, and said."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    binary = pathlib.Path(os.environ["DSTRAIN"]).read_bytes()
    if compiler is None or b"libasan.so" in binary or b"libtsan.so" in binary:
        print("no compiler, or a sanitizer's runtime that must be loaded first: skipped saves are not tried")
        return
    library = scratch / "slow_disk.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, pathlib.Path(__file__).with_name("slow_disk.c")], check=True)
    output = scratch / "slow"
    process = start("launch", QUICKSTART, *SETTINGS, "--set", f"run.output={output}", "--set", "run.checkpoint.every=1s",
                    env=os.environ | {"LD_PRELOAD": str(library), "DSTRAIN_SLOW_FSYNC": "1"})
    wait_for(process, lambda: output.exists() and list(output.glob("*/events.jsonl")))
    directory = only_run(output)
    wait_for(process, lambda: of_kind(directory, "checkpoint_skipped") and of_kind(directory, "checkpoint_saved"), 120)
    process.send_signal(signal.SIGINT)
    text = process.communicate(timeout=120)[0]
    assert process.returncode == 0, text
    skipped = of_kind(directory, "checkpoint_skipped")[0]
    saved = [event["step"] for event in of_kind(directory, "checkpoint_saved")]
    running = int(skipped["running"])
    assert running in saved and running < skipped["step"] and skipped["step"] not in saved, (skipped, saved)
    assert f"no checkpoint after step {skipped['step']}: that of step {running} is still being written" in text, text


test_refusals()
with tempfile.TemporaryDirectory() as folder:
    test_auto_says_why(pathlib.Path(folder))
    test_saves_and_goodput(pathlib.Path(folder))
    test_skipped_while_one_is_written(pathlib.Path(folder))
print("ok")
