"""kill -9 of any rank at random moments, saves included: named, nothing survives, resume gives the unbroken run's losses."""
import json
import os
import pathlib
import random
import signal
import tempfile
import time

from support import expect_success, losses, only_run, processes_naming, rank_processes, run, start

KILLS = int(os.environ.get("DSTRAIN_KILLS", "6"))
RANKS = 2
STEPS = 20 + 15 * KILLS  # about what the kills leave behind; a run that ends before is begun anew
SETTINGS = ["--ranks", RANKS, "--set", "run.epochs=0", "--set", f"run.steps={STEPS}", "--set", "batch.global=8",
            "--set", "batch.micro=4", "--set", "model.layers=1", "--set", "model.width=16", "--set", "model.mlp_width=16",
            "--set", "model.heads=2", "--set", "run.evaluate=never", "--set", "run.checkpoint.every=7"]

seed = int(os.environ.get("DSTRAIN_SEED", random.randrange(1 << 30)))
print(f"seed {seed}")
chance = random.Random(seed)

with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    expect_success(run("launch", "recipes/quickstart.yaml", *SETTINGS, "--set", f"run.output={scratch / 'whole'}",
                       "--set", "run.checkpoint.every=never", timeout=600))
    expected = losses(only_run(scratch / "whole"))
    broken = scratch / "broken"
    resume = "never"
    kills = 0
    runs = 0
    while kills < KILLS:
        process = start("launch", "recipes/quickstart.yaml", *map(str, SETTINGS), "--set", f"run.output={broken}",
                        "--resume", resume)
        runs += 1
        if resume == "never":
            while not (broken.exists() and list(broken.glob("*/checkpoints/step-*/MANIFEST.json"))):
                assert process.poll() is None, process.stdout.read()
                time.sleep(0.01)
            resume = "auto"
        directory = only_run(broken)
        log = directory / "metrics.jsonl"
        size = log.stat().st_size if log.exists() else 0
        while process.poll() is None and log.stat().st_size == size:
            time.sleep(0.005)
        time.sleep(chance.uniform(0, 0.3))
        victim = chance.randrange(RANKS)
        pid = rank_processes(directory).get(victim)
        if pid is None or process.poll() is not None:
            text = process.communicate(timeout=60)[0]
            assert process.returncode == 0, text  # it had reached its end: start over
            for step, loss in losses(directory).items():
                assert loss == expected[step], (step, loss, expected[step])
            broken = scratch / f"broken{runs}"
            resume = "never"
            continue
        os.kill(pid, signal.SIGKILL)
        begin = time.monotonic()
        text = process.communicate(timeout=30)[0]
        took = time.monotonic() - begin
        kills += 1
        assert process.returncode == 128 + signal.SIGKILL, (process.returncode, text)
        root = json.loads((directory / "failure.json").read_text())["root"]
        assert root["rank"] == victim and root["signal"] == signal.SIGKILL, (victim, root, text)
        assert f"rank {victim}" in text, text
        left = processes_naming(f"DSTRAIN_RUN_DIR={directory}")
        assert not left, left
        assert took < 5, took
    expect_success(run("launch", "recipes/quickstart.yaml", *SETTINGS, "--set", f"run.output={broken}", "--resume",
                       resume, timeout=600))
    found = losses(only_run(broken))
    differing = {step: (found.get(step), expected.get(step)) for step in sorted(found.keys() | expected.keys())
                 if found.get(step) != expected.get(step)}
    assert not differing, ("the losses of the broken run differ from the unbroken run's", list(differing.items())[:8])
print(f"kill: ok, {kills} kills")
