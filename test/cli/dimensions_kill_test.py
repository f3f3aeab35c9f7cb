"""kill -9 of ranks of data x pipeline x tensor: they go on by themselves, and when they are told to, with the unbroken run's losses."""
import os
import pathlib
import signal
import tempfile
import time

from support import expect_success, losses, only_run, rank_processes, run, start
from tiny_metamathqa import DENSE, arguments, write_files

LAST = 30


def kill_rank(process, output, victim):
    """kill -9 once there is a checkpoint; returns the run directory."""
    while not list(output.glob("*/checkpoints/step-*/MANIFEST.json")):
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.01)
    directory = only_run(output)
    os.kill(rank_processes(directory)[victim], signal.SIGKILL)
    return directory


with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    long = [*write_files(scratch), *DENSE, f"run.steps={LAST}", "run.evaluate=never", "run.checkpoint.every=5"]
    expect_success(run(*arguments("launch", "3d", 4, *long, f"run.output={scratch}/unbroken")))
    expected = losses(only_run(scratch / "unbroken"))
    assert len(expected) == LAST, expected

    process = start(*arguments("launch", "3d", 4, *long, f"run.output={scratch}/itself"), "--max-restarts", "2")
    directory = kill_rank(process, scratch / "itself", 1)
    text = process.communicate(timeout=120)[0]
    assert process.returncode == 0 and "rank 1" in text and "SIGKILL" in text and "resumed at step" in text, text
    assert losses(directory) == expected, (losses(directory), expected)

    process = start(*arguments("launch", "3d", 4, *long, f"run.output={scratch}/told"))
    directory = kill_rank(process, scratch / "told", 3)
    text = process.communicate(timeout=60)[0]
    assert process.returncode != 0 and "rank 3 failed at step" in text and "SIGKILL" in text, text
    text = expect_success(run(*arguments("launch", "3d", 4, *long, f"run.output={scratch}/told"), "--resume", directory))
    assert "resumed at step" in text and losses(directory) == expected, (text, losses(directory), expected)
print("dimensions_kill: ok")
