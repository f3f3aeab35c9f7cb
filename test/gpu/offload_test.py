"""Offload changes no bit: losses and gradient norms of steps with states, parameters and inputs of blocks in pinned
memory, pageable memory and files equal those with everything on the device, with and without CUDA graphs.

    DSTRAIN=dstrain python3 test/gpu/offload_test.py [ranks]      # default 1; several run under ZeRO-2 and ZeRO-3
"""

import glob
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import support  # noqa: E402

DSTRAIN = os.environ["DSTRAIN"]
RANKS = int(sys.argv[1]) if sys.argv[1:] else 1
# 256 tokens: cuDNN's attention adds the parts of longer sequences in no fixed order.
BASE = ["recipes/bloom/bloom-560m_random.yaml", "data.sequence=256", f"batch.global={32 * RANKS}",
        "batch.micro=16", "run.steps=12", "optimizer.clip_norm=0.5", "memory.recompute=blocks"]


def steps(folder, overrides, environment=None):
    """(loss, gradient norm) of each step."""
    output = os.path.join(folder, "runs")
    shutil.rmtree(output, ignore_errors=True)
    command = [DSTRAIN, "launch", BASE[0], "--ranks", str(RANKS), "--set", "run.output=" + output]
    for override in BASE[1:] + overrides:
        command += ["--set", override]
    run = subprocess.run(command, capture_output=True, text=True, timeout=200,
                         env={**os.environ, **(environment or {})})
    if run.returncode != 0:
        sys.exit(f"{overrides}: exit code {run.returncode}\n{run.stderr[-2000:]}")
    with open(glob.glob(output + "/*/metrics.jsonl")[0]) as file:
        lines = [json.loads(line) for line in file]
    return [(line["loss"], line.get("grad_norm", line.get("gradient_norm")))
            for line in lines if "loss" in line]


def main():
    if support.num_gpus() < RANKS:
        print(f"test/gpu/offload_test.py: wants {RANKS} GPUs and finds {support.num_gpus()}; nothing was tested")
        return 77
    folder = tempfile.mkdtemp(dir=os.environ.get("DSTRAIN_TEST_DISK", "/var/tmp"))
    key = "memory.offload."
    path = key + "path=" + folder
    ways = {
        "updated by the GPU": [key + "optimizer=pinned", key + "update=gpu"],
        "updated by the CPU": [key + "optimizer=pinned", key + "update=cpu"],
        "divided": [key + "optimizer=pinned"],
        "half": [key + "optimizer=pinned", key + "share=0.5"],
        "pageable": [key + "optimizer=pageable"],
        "parameters": [key + "parameters=pinned"],
        "both": [key + "optimizer=pinned", key + "parameters=pinned"],
        "both by the CPU": [key + "optimizer=pinned", key + "parameters=pinned", key + "update=cpu"],
        "both pageable": [key + "optimizer=pageable", key + "parameters=pageable"],
        "inputs": [key + "activations=pinned"],
        "inputs pageable": [key + "activations=pageable"],
        "all in files": [key + "optimizer=file", key + "parameters=file",
                         key + "activations=file", path],
    }
    failed = []
    try:
        for stage in (0,) if RANKS == 1 else (2, 3):
            for states in ("fp32", "bf16"):
                base = ["precision.states=" + states, f"parallel.zero.stage={stage}"]
                expected = steps(folder, base)
                assert len(expected) >= 12, expected
                for name, way in ways.items():
                    if stage == 2 and any(key + "parameters" in word for word in way):
                        continue  # parameters rest on the host under stage 3 or of one rank
                    if states == "bf16" and name == "all in files":
                        continue
                    for environment in ({}, {"DSTRAIN_NO_GRAPHS": "1"}):
                        if environment and name not in ("both", "inputs pageable"):
                            continue
                        found = steps(folder, base + way, environment)
                        wrong = [i for i, step in enumerate(expected) if found[i] != step]
                        note = "equal" if not wrong else f"differs from step {wrong[0]} on"
                        what = f"{RANKS} ranks, stage {stage}, {states} states, {name}{', no graphs' if environment else ''}"
                        print(f"{what}: {note}", flush=True)
                        if wrong:
                            failed.append(what)
        left = [entry for entry in os.listdir(folder) if entry != "runs"]
        assert not left, left
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if failed:
        sys.exit("not equal: " + ", ".join(failed))
    print("offload test: all ways equal")
    return 0


if __name__ == "__main__":
    sys.exit(main())
