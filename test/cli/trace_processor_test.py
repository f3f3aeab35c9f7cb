"""Perfetto opens what `dstrain trace merge` writes: JSON and pftrace have equal slices, arrows, rows and values, and no import error."""
import pathlib
import sys
import tempfile

import made_trace
import support
import trace_processor

QUESTIONS = {
    "import errors": "select name, value from stats where severity <> 'info' and value > 0",
    "slices": "select name, ts - (select min(ts) from slice), dur from slice order by 2, 3, 1",
    "arrows": "select a.name, b.name, b.ts - a.ts from flow join slice a on a.id = slice_out join slice b on b.id = slice_in order by 1, 2, 3",
    "values": "select ts - (select min(ts) from slice), value from counter order by 1, 2",
    "rows": "select count(distinct track_id) from slice where dur > 0",
}


def add_what_perfetto_draws(trace):
    """Names of rows, arrows from launch to kernel, a counter, two kernels at once on one stream, regions that cross each other or begin
    with a kernel."""
    kernel = next(e for e in trace.events if e["cat"] == "kernel" and e["tid"] == 7)
    start, duration = round(kernel["ts"] * 1000), round(kernel["dur"] * 1000)
    trace.launch("kernel", "beside", start - 9000, 500, start + duration // 2, duration, 7, "cudaLaunchKernel")
    trace.add("gpu_user_annotation", "forward", start, 5 * duration, 0, 7)
    # Row 0 of a process, and rows with the numbers that processes may get.
    for row in range(4):
        trace.add("dstrain_lane", "action", start + row, 1000, 1000, row)
    trace.add("user_annotation", "first", start - 4000, 3000, 55, 55)
    trace.add("user_annotation", "second", start - 2000, 3000, 55, 55)
    launches = {e["args"]["correlation"]: e for e in trace.events if e["cat"] == "cuda_runtime"}
    arrows = []
    for event in trace.events:
        call = launches.get(event["args"].get("correlation"))
        if event["cat"] not in ("kernel", "gpu_memcpy", "gpu_memset") or call is None:
            continue
        where = {"id": event["args"]["correlation"], "cat": "ac2g", "name": "ac2g"}
        arrows.append({**where, "ph": "s", "pid": call["pid"], "tid": call["tid"], "ts": call["ts"]})
        arrows.append({**where, "ph": "f", "bp": "e", "pid": event["pid"], "tid": event["tid"], "ts": event["ts"]})
    first = min(e["ts"] for e in trace.events if e["cat"] == "kernel")
    counters = [{"ph": "C", "name": "memory allocated", "pid": 1000, "tid": 0, "ts": first + i, "args": {"bytes": 1000 * i}}
                for i in range(5)]
    names = [{"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "ts": 0, "args": {"name": name}}
             for pid, name in ((100, "python"), (0, "GPU 0"), (1000, "steps"))]
    names += [{"ph": "M", "name": "thread_name", "pid": 0, "tid": stream, "ts": 0, "args": {"name": f"stream {stream}"}}
              for stream in (7, 20, 24)]
    trace.events += arrows + counters + names
    return trace


def compare(source, folder, *names):
    """Merges `source` into each file of `folder` and asks Perfetto about all of them."""
    answers = {}
    for name in names:
        support.expect_success(support.run("trace", "merge", source, "-o", folder / name))
        answers[name] = dict(zip(QUESTIONS, trace_processor.query(folder / name, QUESTIONS.values())))
        assert answers[name]["import errors"] == [], (source, name, answers[name]["import errors"])
    wanted = answers[names[0]]
    for name, answer in answers.items():
        for question, rows in answer.items():
            differ = [pair for pair in zip(rows, wanted[question]) if pair[0] != pair[1]]
            assert rows == wanted[question], (source, name, question, len(rows), len(wanted[question]), differ[:5])
    print(f"{source}: {len(wanted['slices'])} slices on {wanted['rows'][0][0]} rows, {len(wanted['arrows'])} arrows, "
          f"{len(wanted['values'])} values")
    return wanted


def main():
    missing = trace_processor.missing()
    if missing:
        print(f"skipped: not installed: {', '.join(missing)} (scripts/setup --tests)")
        return 77
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        for rank in range(2):
            trace = add_what_perfetto_draws(made_trace.made_trace(rank, 2, seed=5, steps=2, kernels=40, sync=False))
            trace.write(folder / f"rank{rank}_trace.json")
        made = compare(folder, folder, "merged_trace.json", "merged_trace.json.gz", "merged_trace.pftrace", "merged_trace.pftrace.gz")
        assert all(made[question] for question in ("slices", "arrows", "values")), "nothing to compare"
        for recorded in sorted((support.ROOT / "test/golden/traces").iterdir()):
            compare(recorded, folder, "merged_trace.json", "merged_trace.pftrace")
    return 0


if __name__ == "__main__":
    sys.exit(main())
