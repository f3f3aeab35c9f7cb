"""The peer of several axes runs: data, tensor and pipeline ranks of a small model on the CPU. Ranks are forks of this process with the
environment that torchrun gives, since torch takes longer to import than they run."""
import json
import os
import pathlib
import runpy
import sys
import tempfile

os.environ["OMP_NUM_THREADS"] = "1"
import torch.distributed.fsdp  # noqa: E402, F401  (for all ranks at once)
import torch.distributed.pipelining  # noqa: E402, F401
import torch.distributed.tensor.parallel  # noqa: E402, F401

from support import ROOT, free_port  # noqa: E402


def run_rank(rank, ranks, port, arguments, output):
    """In a fork; its exit code."""
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        stream.flush()
        os.dup2(output.fileno(), number)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    script = ROOT / "scripts/peers/torch_parallel.py"
    sys.argv = [str(script), *arguments]
    code = 1
    try:
        runpy.run_path(str(script), run_name="__main__")
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    sys.stdout.flush()
    return code


for ranks, arguments, expected in ((2, "--zero 3", {"data": 2}), (2, "--tensor 2", {"tensor": 2}),
                                   (4, "--pipeline 2 --schedule ZBVZeroBubble --micro-batches 4", {"pipeline": 2, "data": 2})):
    words = ["--tiny", "--sequence", "32", "--micro-batch", "2", "--steps", "2", "--warmup", "1", "--no-compile", *arguments.split()]
    with tempfile.TemporaryDirectory() as scratch:
        output, port, children = pathlib.Path(scratch) / "output", free_port(), []
        with output.open("ab") as file:
            for rank in range(ranks):
                children.append(os.fork())
                if children[-1] == 0:
                    os._exit(run_rank(rank, ranks, port, words, file))
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        text = output.read_text()
    assert codes == [0] * ranks, (arguments, codes, text[-4000:])
    row = json.loads(next(line for line in text.splitlines() if line.startswith("{")))
    assert row["tokens_per_s_per_gpu"] > 0 and all(row[key] == value for key, value in expected.items()), row
print("torch_parallel: ok")
