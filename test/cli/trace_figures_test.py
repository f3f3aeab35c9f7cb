"""dstrain trace analyze and diff on made and recorded files: the order of events and merging change nothing, broken files are named."""
import csv
import json
import pathlib
import random
import tempfile

import made_trace
import support

GOLDEN = support.ROOT / "test/golden/traces"


def analyze(*arguments):
    return json.loads(support.expect_success(support.run("trace", "analyze", *arguments, "--json")))


def without_files(analysis):
    for rank in analysis["ranks"]:
        rank.pop("file")
    return analysis


def order_and_merging_change_nothing(folder):
    traces = [made_trace.made_trace(rank, 3, seed=7) for rank in range(3)]
    for trace in traces:
        trace.write(folder / f"rank{trace.rank}_trace.json")
    first = without_files(analyze(folder))
    assert [rank["rank"] for rank in first["ranks"]] == [0, 1, 2]
    assert first["collectives"]["rows"] and all(row["partial"] == 0 for row in first["collectives"]["rows"])

    merged = {"traceEvents": []}
    for trace in traces:
        for event in trace.events:
            args = {**event["args"], "rank": trace.rank}
            if args.get("correlation", -1) >= 0:
                args["correlation"] += trace.rank << 32
            merged["traceEvents"].append({**event, "args": args, "ts": event["ts"]})
    random.Random(1).shuffle(merged["traceEvents"])
    # The base behind the events, as some writers have it.
    merged["baseTimeNanoseconds"] = 1700000000000000000
    (folder / "merged_trace.json").write_text(json.dumps(merged))
    assert without_files(analyze(folder / "merged_trace.json")) == first
    assert without_files(analyze(folder)) == first, "the merged file counts beside those of the ranks"

    one = analyze(folder, "--ranks", "1", "--steps", "6")
    assert [rank["rank"] for rank in one["ranks"]] == [1]
    assert [step["step"] for step in one["ranks"][0]["steps"]] == [6]
    assert one["ranks"][0]["breakdown"] == {k: v for k, v in one["ranks"][0]["steps"][0].items() if k != "step"}
    assert all(row["partial"] == row["count"] for row in one["collectives"]["rows"]), "the other ranks were left out"

    support.expect_success(support.run("trace", "analyze", folder, "--csv", folder / "csv"))
    rows = list(csv.DictReader((folder / "csv/breakdown.csv").open(newline="")))
    assert float(rows[0]["time us"]) * 1000 == first["ranks"][0]["breakdown"]["window_ns"], rows[0]


def a_cpu_has_actions_as_events(folder):
    actions = [{"index": 0, "name": "gather(a)", "kind": "gather", "lane": "gather", "phase": "forward", "block": "", "group": "a"},
               {"index": 1, "name": "forward(a)", "kind": "forward", "lane": "compute", "phase": "forward", "block": "a", "group": ""}]
    (folder / "rank0_actions.json").write_text(json.dumps({"version": 1, "rank": 0, "actions": actions}))
    lane = lambda index, name, tid, ts, dur: {"ph": "X", "cat": "dstrain_lane", "name": name, "pid": 1000, "tid": tid, "ts": ts, "dur": dur,
                                              "args": {"action": index, "step": 4}}
    (folder / "rank0_trace.json").write_text(json.dumps({"distributedInfo": {"rank": 0}, "traceEvents": [
        lane(0, "gather(a)", 1, 10.001, 5), lane(1, "forward(a)", 0, 12.001, 10.5)]}))
    rank = analyze(folder, "--by", "block")["ranks"][0]
    assert rank["device"] == "cpu" and rank["launches"] is None
    b = rank["breakdown"]
    assert (b["window_ns"], b["communication_ns"], b["overlap_ns"], b["exposed_communication_ns"]) == (12500, 5000, 3000, 2000), b
    assert rank["exposed_communication"] == [{"by": "gather(a)", "ns": 2000}]
    assert {row["name"] for row in analyze(folder, "--by", "block")["kernels"]} == {"a"}


def recorded_kernels_have_one_action():
    b = analyze(GOLDEN / "zero3", "--by", "action", "--top", 1000)
    outside = [row for row in b["kernels"] if row["name"] == "(none)"]
    assert sum(row["count"] for row in outside) == 4, outside  # sums set to zero before the first action
    communication = [row["name"] for row in b["kernels"] if row["type"] == "communication"]
    assert communication and all(name.startswith(("gather(", "reduce(", "norm")) for name in communication), communication
    for sums in ("phase", "block", "kernel"):
        other = analyze(GOLDEN / "zero3", "--by", sums, "--top", 1000)
        assert sum(row["sum_ns"] for row in other["kernels"]) == sum(row["sum_ns"] for row in b["kernels"])


def differences(folder):
    same = support.run("trace", "diff", GOLDEN / "zero3", GOLDEN / "zero3", "--fail-above", "0")
    assert same.returncode == 0, same.stdout + same.stderr
    slower = made_trace.made_trace(0, 1, seed=3)
    base, test = folder / "base", folder / "test"
    base.mkdir(), test.mkdir()
    slower.write(base / "rank0_trace.json")
    last = max(e["ts"] + e["dur"] for e in slower.events if e["cat"] == "kernel")
    slower.launch("kernel", "late", int(last * 1000), 500, int(last * 1000) + 1000, 4_000_000, 7, "cudaLaunchKernel")
    slower.write(test / "rank0_trace.json")
    result = support.run("trace", "diff", base, test, "--json")
    found = json.loads(support.expect_success(result))
    assert found["rows"][0]["name"] == "late" and found["growth_percent"] > 10, found["rows"][0]
    late = support.run("trace", "diff", base, test, "--fail-above", "10")
    assert late.returncode == 1 and "more than 10 %" in late.stderr, late.stderr


def refusals(folder):
    whole = json.dumps(made_trace.made_trace(0, 1, seed=3).object())
    cut = folder / "rank0_trace.json"
    cut.write_text(whole[:len(whole) // 2])
    result = support.run("trace", "analyze", cut)
    assert result.returncode == 65 and "rank0_trace.json" in result.stderr and "--salvage" in result.stderr, result.stderr
    saved = analyze(cut, "--salvage")
    assert saved["notes"] and saved["ranks"][0]["breakdown"]["events"] > 50
    for arguments, words in ((("--by", "block"), "actions.json"), (("--steps", "9-4"), "--steps"), (("--ranks", "x"), "--ranks"),
                             (("--ranks", "5"), "nothing to analyze")):
        result = support.run("trace", "analyze", GOLDEN / "pytorch_ddp", *arguments)
        assert result.returncode == 64 and words in result.stderr, (arguments, result.stderr)
    empty = folder / "empty"
    empty.mkdir()
    result = support.run("trace", "analyze", empty)
    assert result.returncode == 64 and "no trace in" in result.stderr, result.stderr
    twice = support.run("trace", "analyze", GOLDEN / "pytorch_ddp", GOLDEN / "pytorch_fsdp2")
    assert twice.returncode == 64 and "both of rank 0" in twice.stderr, twice.stderr
    hostile = made_trace.made_trace(0, 1, seed=4, steps=1, kernels=5)
    hostile.events[1]["name"] = hostile.events[2]["name"] = "\x1b[31mred"
    hostile.write(cut)
    shown = support.expect_success(support.run("trace", "analyze", cut))
    assert "\x1b" not in shown


def main():
    for case in (order_and_merging_change_nothing, a_cpu_has_actions_as_events, differences, refusals):
        with tempfile.TemporaryDirectory() as name:
            case(pathlib.Path(name))
    recorded_kernels_have_one_action()


main()
