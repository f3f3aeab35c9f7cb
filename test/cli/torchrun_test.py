"""The engine as a plain rank: under torchrun it trains as under `dstrain launch`."""
import os
import pathlib
import subprocess
import sys
import tempfile

from support import DSTRAIN, ROOT, expect_success, losses, only_run, run

SHORT = ["--set", "run.epochs=0", "--set", "run.steps=12", "--set", "run.evaluate=never", "--set", "run.checkpoint.every=never"]

if subprocess.run([sys.executable, "-c", "import torch.distributed.run"], capture_output=True).returncode != 0:
    print("torchrun: skipped, this python has no torch")
    sys.exit(77)

with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    expect_success(run("launch", "recipes/quickstart.yaml", "--ranks", 2, *SHORT, "--set", f"run.output={scratch / 'ours'}"))
    result = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python", "--nproc_per_node=2", DSTRAIN,
         "engine", "recipes/quickstart.yaml", *SHORT, "--set", f"run.output={scratch / 'plain'}"],
        cwd=ROOT, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL,
        env=os.environ | {"DSTRAIN_JOB_SECRET": "ab" * 32})  # of a job around torchrun, whose agent serves the store
    text = expect_success(result)
    assert "done after 12 of 12 steps" in text, text
    assert losses(only_run(scratch / "plain")) == losses(only_run(scratch / "ours"))
print("torchrun: ok")
