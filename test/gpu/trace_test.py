"""Traces of steps on GPUs, eager and with CUDA graphs: every kernel has one action, both give an action the same kernels, losses stay equal bit for bit.

    DSTRAIN=dstrain python3 test/gpu/trace_test.py      # exit 77 without a GPU; uses up to 4
"""
import collections
import gzip
import json
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import support  # noqa: E402

STEPS = range(10, 13)
SETTINGS = ["model.layers=4", "model.width=192", "model.heads=3", "model.mlp_width=768", "batch.micro=8", "run.steps=24", "metrics.sample_s=0",
            "memory.recompute=blocks"]


def launch(recipe, folder, ranks, *settings):
    words = [word for setting in [*SETTINGS, f"batch.global={16 * ranks}", *settings] for word in ("--set", setting)]
    support.expect_success(support.run("launch", recipe, "--ranks", ranks, "--set", f"run.output={folder}", *words))
    return support.only_run(folder)


def device_events(path):
    """{(step, action): number of kernels, copies and fills}, and how often a graph was launched."""
    with gzip.open(path, "rt") as file:
        trace = json.load(file)
    assert trace["dstrain"]["incomplete"] == "", trace["dstrain"]
    counts, launches = collections.Counter(), 0
    for event in trace["traceEvents"]:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            assert event["args"]["step"] in STEPS, event
            counts[event["args"]["step"], event["args"]["action"]] += 1
        launches += event.get("name") == "cudaGraphLaunch"
    return counts, launches


def main():
    ranks = min(4, support.num_gpus())
    if ranks == 0:
        print("no GPU: skipped")
        return 77
    for name in ("ddp", "zero3"):
        recipe = f"recipes/vit/vit-base_random_{name}.yaml"
        with tempfile.TemporaryDirectory() as scratch:
            folder = pathlib.Path(scratch)
            plain = launch(recipe, folder / "plain", ranks)
            window = [f"trace.first={STEPS[0]}", f"trace.steps={len(STEPS)}"]
            eager = launch(recipe, folder / "eager", ranks, *window)
            graphs = launch(recipe, folder / "graphs", ranks, *window, "trace.graphs=true")
            assert support.losses(eager) == support.losses(plain), "tracing changes the losses"
            assert support.losses(graphs) == support.losses(plain), "tracing with graphs changes the losses"
            for rank in range(ranks):
                counts, launches = device_events(eager / "traces" / f"rank{rank}_trace.json.gz")
                assert launches == 0, launches
                replayed, launches = device_events(graphs / "traces" / f"rank{rank}_trace.json.gz")
                assert launches > 0 and launches % len(STEPS) == 0, launches
                different = {key: (counts[key], replayed[key]) for key in counts | replayed if counts[key] != replayed[key]}
                assert not different, f"(step, action): (eager, graphs) {different}"
            print(f"{name}, {ranks} ranks: {sum(counts.values())} kernels, copies and fills of {len(STEPS)} steps, {launches} launches of graphs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
