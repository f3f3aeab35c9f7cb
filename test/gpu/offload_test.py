"""Offload changes no bit: losses and gradient norms of steps, and losses of evaluations, with states, parameters and inputs of blocks in pinned
memory, pageable memory and files equal those with everything on the device, with and without CUDA graphs.

    DSTRAIN=dstrain python3 test/gpu/offload_test.py [RANKS [STAGE [STATES]]]

RANKS, default 1; several run under ZeRO-2 and ZeRO-3. With STAGE only that one, with STATES (fp32, bf16) only these.
"""

import os
import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import support  # noqa: E402

RANKS = int(sys.argv[1]) if sys.argv[1:] else 1
KEY = "memory.offload."
RECIPE = "recipes/bloom/bloom-560m_random.yaml"
# 256 tokens: cuDNN's attention adds the parts of longer sequences in no fixed order.
# The evaluation reads parameters while the updates of the last step may still be under way.
BASE = ["data.sequence=256", f"data.samples={400 * RANKS}", f"batch.global={32 * RANKS}", "batch.micro=16", "run.steps=12", "run.evaluate=6",
        "optimizer.clip_norm=0.5", "memory.recompute=blocks"]


def steps(folder, overrides, graphs=True):
    """(loss, gradient norm) of each step, (loss, samples) of each evaluation."""
    output = os.path.join(folder, "runs")
    shutil.rmtree(output, ignore_errors=True)
    words = [word for override in [f"run.output={output}", *BASE, *overrides] for word in ("--set", override)]
    environment = os.environ if graphs else {**os.environ, "DSTRAIN_NO_GRAPHS": "1"}
    run = support.run("launch", RECIPE, "--ranks", RANKS, *words, timeout=200, env=environment)
    if run.returncode != 0:
        sys.exit(f"{overrides}: exit code {run.returncode}\n{run.stdout[-2000:]}{run.stderr[-2000:]}")
    directory = support.only_run(output)
    made = [(step["loss"], step["grad_norm"]) for step in support.metrics(directory).values()]
    evaluated = [(evaluation["loss"], evaluation["samples"]) for evaluation in support.metrics(directory, "evaluation").values()]
    assert (len(made), len(evaluated)) == (12, 2), (made, evaluated)
    return made, evaluated


def cases(ways):
    """(ZeRO stage, type of states, name of the way, with graphs) of each run."""
    for stage in map(int, sys.argv[2:3]) if sys.argv[2:] else (0,) if RANKS == 1 else (2, 3):
        for states in sys.argv[3:4] or ("fp32", "bf16"):
            for name, way in ways.items():
                if RANKS > 1 and stage < 3 and any(KEY + "parameters" in word for word in way):
                    continue  # parameters rest on the host under stage 3 or of one rank
                if states == "bf16" and name == "all in files":
                    continue
                yield stage, states, name, True
                if name in ("both", "inputs pageable"):
                    yield stage, states, name, False


def main():
    gpus = support.num_gpus()
    if gpus < RANKS:
        print(f"test/gpu/offload_test.py: wants {RANKS} GPUs and finds {gpus}; nothing was tested")
        return 77
    folder = support.folder_on_disk()
    path = f"{KEY}path={folder}"
    ways = {
        "updated by the GPU": [KEY + "optimizer=pinned", KEY + "update=gpu"],
        "updated by the CPU": [KEY + "optimizer=pinned", KEY + "update=cpu"],
        "divided": [KEY + "optimizer=pinned"],
        "half": [KEY + "optimizer=pinned", KEY + "share=0.5"],
        "pageable": [KEY + "optimizer=pageable"],
        "parameters": [KEY + "parameters=pinned"],
        "both": [KEY + "optimizer=pinned", KEY + "parameters=pinned"],
        "both by the CPU": [KEY + "optimizer=pinned", KEY + "parameters=pinned", KEY + "update=cpu"],
        "both pageable": [KEY + "optimizer=pageable", KEY + "parameters=pageable"],
        "inputs": [KEY + "activations=pinned"],
        "inputs pageable": [KEY + "activations=pageable"],
        "all in files": [KEY + "optimizer=file", KEY + "parameters=file",
                         KEY + "activations=file", path],
    }
    failed = []
    try:
        expected = {}
        for stage, states, name, graphs in cases(ways):
            base = ["precision.states=" + states, f"parallel.zero.stage={stage}"]
            if (stage, states) not in expected:
                expected[stage, states] = steps(folder, base)
            found = steps(folder, base + ways[name], graphs)
            wrong = [f"{what} {i + 1}" for what, own, others in zip(("step", "evaluation"), found, expected[stage, states])
                     for i in range(len(own)) if own[i] != others[i]]
            note = "equal" if not wrong else f"differs from {wrong[0]} on"
            what = f"{RANKS} ranks, stage {stage}, {states} states, {name}{'' if graphs else ', no graphs'}"
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
