"""The peer of several axes runs: data, tensor and pipeline ranks of a small model on the CPU."""
import json
import os
import subprocess
import sys

from support import ROOT

for ranks, arguments, expected in ((2, "--zero 3", {"data": 2}), (2, "--tensor 2", {"tensor": 2}),
                                   (4, "--pipeline 2 --schedule ZBVZeroBubble --micro-batches 4", {"pipeline": 2, "data": 2})):
    result = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}",
                             str(ROOT / "scripts/peers/torch_parallel.py"), "--tiny", "--sequence", "32", "--micro-batch", "2", "--steps", "2",
                             "--warmup", "1", "--no-compile", *arguments.split()], capture_output=True, text=True, timeout=200,
                            env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert result.returncode == 0, (arguments, result.stdout, result.stderr[-4000:])
    row = json.loads(next(line for line in result.stdout.splitlines() if line.startswith("{")))
    assert row["tokens_per_s_per_gpu"] > 0 and all(row[key] == value for key, value in expected.items()), row
print("torch_parallel: ok")
