"""Traces of chosen steps and times of all: what the files hold, that training is the same with them, and that it goes on without them."""
import gzip
import json
import os
import pathlib
import signal
import tempfile
import time

from support import expect_success, losses, metrics, only_run, run, start

SETTINGS = ["recipes/quickstart.yaml", "--ranks", 2, "--set", "model.layers=2", "--set", "run.epochs=0", "--set", "run.steps=14", "--set",
            "run.evaluate=never", "--set", "run.checkpoint.every=never", "--set", "optimizer.warmup_steps=1"]


def launch(folder, *settings):
    pairs = [word for setting in settings for word in ("--set", setting)]
    text = expect_success(run("launch", *SETTINGS, "--set", f"run.output={folder}", *pairs))
    return only_run(folder), text


def read(path):
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt") as file:
        return json.load(file)


def rank_lines(directory, rank):
    return [json.loads(line) for line in (directory / "ranks" / f"rank{rank:04d}.jsonl").read_text().splitlines()]


def check_trace(path, rank, steps):
    trace = read(path)
    actions = read(path.parent / f"rank{rank}_actions.json")
    assert trace["distributedInfo"] == {"backend": "gloo", "rank": rank, "world_size": 2}, trace["distributedInfo"]
    assert trace["dstrain"]["steps"] == steps and trace["dstrain"]["incomplete"] == "", trace["dstrain"]
    assert actions["steps"] == steps and actions["program"] == trace["dstrain"]["program"], actions["steps"]
    events = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    names = [e["name"] for e in events if e["cat"] == "user_annotation"]
    expected = range(steps[0], steps[1] + 1)
    for step in expected:
        for name in (f"ProfilerStep#{step}", f"## Training Step {step} ##"):
            assert names.count(name) == 1, (name, names.count(name))
    for name in ("## Forward Pass ##", "## Backward Pass ##", "## Optimizer Step ##"):
        assert names.count(name) == len(expected), (name, names.count(name))
    lanes = [e for e in events if e["cat"] == "dstrain_lane"]
    assert len(lanes) == len(expected) * len(actions["actions"]), len(lanes)
    for event in lanes:
        action = actions["actions"][event["args"]["action"]]
        assert event["name"] == action["name"] and event["args"]["step"] in expected, event
    # Every operator of a step is inside one of its actions, or before the first of them: backward runs on the thread that trains.
    thread = next(e["tid"] for e in events if e["name"] == f"ProfilerStep#{steps[0]}" and e["cat"] == "user_annotation")
    on_thread = [e for e in events if e["cat"] == "cpu_op" and e["tid"] == thread and "_backward" in e["name"]]
    regions = [e for e in events if e["cat"] == "user_annotation" and e["tid"] == thread and e["name"].startswith("backward(")]
    assert on_thread and regions
    for op in on_thread:
        assert any(r["ts"] <= op["ts"] and op["ts"] + op["dur"] <= r["ts"] + r["dur"] + 1 for r in regions), op
    calls = [e for e in events if e["name"] == "record_param_comms"]
    wanted = {"_allgather_base", "_reduce_scatter_base", "allreduce"}
    assert {e["args"]["Collective name"] for e in calls} == wanted, {e["args"]["Collective name"] for e in calls}
    assert all(e["args"]["Group size"] == 2 for e in calls)


with tempfile.TemporaryDirectory() as scratch:
    folder = pathlib.Path(scratch)
    plain, _ = launch(folder / "plain", "metrics.timing=off", "metrics.tensorboard=false")
    assert not list((plain / "traces").iterdir())
    assert not (plain / "tensorboard").exists() or not list((plain / "tensorboard").iterdir())
    assert rank_lines(plain, 0) == []
    assert all(o["forward_s"] is None for o in metrics(plain).values())

    traced, text = launch(folder / "traced", "trace.steps=3")
    assert "trace of steps 4 to 6" in text, text
    assert "trace: steps 4 to 6 are recorded, with the profiler on from step 3" in text, text
    assert "ERROR" not in text and "CUPTI" not in text, text  # Kineto's, where there is no GPU
    assert losses(traced) == losses(plain), "tracing changes the losses"
    merged = read(traced / "traces" / "merged_trace.json.gz")["traceEvents"]
    assert {e["args"]["rank"] for e in merged if e.get("cat") == "dstrain_step"} == {0, 1}, "both ranks are in the merged file"
    for rank in range(2):
        check_trace(traced / "traces" / f"rank{rank}_trace.json.gz", rank, [4, 6])
        lines = rank_lines(traced, rank)
        assert [line["step"] for line in lines] == list(range(1, 15)), lines
        assert [line["step"] for line in lines if line["traced"]] == [3, 4, 5, 6], "warm-up and traced steps are marked"
        for line in lines:
            parts = sum(line[f"{phase}_s"] for phase in ("forward", "backward", "norm", "update"))
            assert abs(parts - line["step_s"]) < 0.2 * line["step_s"] + 1e-3, line
            assert 0 <= line["exposed_comm_s"] <= line["step_s"] * 1.1, line
            assert line["calls"]["all_gather shard-gather"][0] > 0, line
    assert all(o["forward_s"] > 0 and o["backward_s"] > 0 for o in metrics(traced).values())

    windows, _ = launch(folder / "windows", "trace.steps=1", "trace.first=2", "trace.every=5", "trace.ranks=[1]", "trace.compress=none",
                        "trace.detail=shapes", f"trace.output={folder / 'logs' / 'tiny_trace'}")
    assert losses(windows) == losses(plain)
    assert not list((folder / "logs").rglob("merged*")), "one rank needs no merging"
    found = sorted(str(p.relative_to(folder / "logs" / "tiny_trace")) for p in (folder / "logs").rglob("*.json"))
    assert found == [f"step-{s:08d}/rank1_{kind}.json" for s in (2, 7, 12) for kind in ("actions", "trace")], found
    check_trace(folder / "logs" / "tiny_trace" / "step-00000007" / "rank1_trace.json", 1, [7, 7])

    # The run's recipe says where its traces are.
    analyzed = json.loads(expect_success(run("trace", "analyze", windows, "--json")))
    assert [(r["rank"], [s["step"] for s in r["steps"]]) for r in analyzed["ranks"]] == [(1, [12])], analyzed["ranks"]
    assert any("holds 3 windows of traces: only the newest is read, step-00000012" in note for note in analyzed["notes"]), analyzed["notes"]

    packed, _ = launch(folder / "packed", "trace.steps=1", "trace.compress=zstd")
    names = {p.name for p in (packed / "traces").iterdir()}
    assert names == {"merged_trace.json.gz"} | {f"rank{r}_{kind}" for r in range(2) for kind in ("trace.json.zst", "actions.json")}, names
    analyzed = json.loads(expect_success(run("trace", "analyze", packed, "--json")))
    assert [r["rank"] for r in analyzed["ranks"]] == [0, 1] and analyzed["notes"] == [], analyzed["notes"]

    # The run ends inside the window: what there is is written.
    short, text = launch(folder / "short", "trace.steps=100", "trace.first=13", "trace.compress=none")
    check_trace(short / "traces" / "rank0_trace.json", 0, [13, 14])

    # A run that ends before says so.
    late, text = launch(folder / "late", "trace.steps=1", "trace.first=20")
    assert "warning: no trace: the last step is 14, the first recorded one would be 20 (trace.first)" in text, text
    assert not list((late / "traces").iterdir())

    # A folder that cannot be made costs the trace only.
    (folder / "file").write_text("in the way")
    blocked, text = launch(folder / "blocked", "trace.steps=1", f"trace.output={folder / 'file' / 'traces'}")
    assert "warning: no trace of steps 4 to 4" in text and str(folder / "file") in text, text
    assert losses(blocked) == losses(plain)
    # A running job is asked.
    job = start("launch", *SETTINGS, "--set", f"run.output={folder / 'asked'}", "--set", "run.steps=300")
    while not list((folder / "asked").glob("*/metrics.jsonl")):
        assert job.poll() is None, job.communicate()[0]
        time.sleep(0.05)
    asked = only_run(folder / "asked")
    assert "records 2 steps" in expect_success(run("trace", "request", asked, "--steps", 2))
    text, _ = job.communicate(timeout=240)
    assert job.returncode == 0, text
    assert "somebody asked for a trace" in text and not (asked / "trace_request.json").exists(), text
    (window,) = (asked / "traces").iterdir()
    first = int(window.name.removeprefix("step-"))
    for rank in range(2):
        check_trace(window / f"rank{rank}_trace.json.gz", rank, [first, first + 1])
        assert [line["step"] for line in rank_lines(asked, rank) if line["traced"]] == [first - 1, first, first + 1]
    assert (window / "merged_trace.json.gz").exists(), "requested windows are merged, too"

    # Nothing runs there to take it, or it is no run.
    late = run("trace", "request", asked, "--wait", 1)
    assert late.returncode == 64 and "withdrawn" in late.stderr and not (asked / "trace_request.json").exists(), late.stderr
    # Ctrl-C takes it back.
    waiting = start("trace", "request", asked)
    while not (asked / "trace_request.json").exists():
        assert waiting.poll() is None, waiting.communicate()[0]
        time.sleep(0.01)
    waiting.send_signal(signal.SIGINT)
    text, _ = waiting.communicate(timeout=20)
    assert waiting.returncode == 130 and "withdrawn" in text and not (asked / "trace_request.json").exists(), text
    (asked / "trace_request.json").write_text("{}")
    again = run("trace", "request", asked)
    assert again.returncode == 64 and "asked for already" in again.stderr, again.stderr
    foreign = run("trace", "request", folder)
    assert foreign.returncode == 64 and "no run is there" in foreign.stderr, foreign.stderr
print("traces hold every action of every step, and change nothing")
