"""HolisticTraceAnalysis 0.5.0 reads our traces, and what it finds in them is what dstrain trace analyze finds, within HTA's rounding."""
import json
import logging
import pathlib
import re
import sys
import tempfile

try:
    from hta.trace_analysis import TraceAnalysis
except ImportError as error:
    print(f"skipped: {error}; scripts/setup --tests installs it")
    sys.exit(77)

import made_trace
import support

logging.disable(logging.CRITICAL)


def hta_of(folder):
    """HTA's row of the temporal breakdown of each rank."""
    files = {int(re.search(r"rank(\d+)_trace", path.name)[1]): str(path) for path in pathlib.Path(folder).glob("rank*_trace.json*")}
    hta = TraceAnalysis(trace_files=dict(sorted(files.items())), trace_dir=str(folder))
    return {int(row["rank"]): row for row in hta.get_temporal_breakdown(visualize=False).to_dict("records")}


def compare(folder):
    """HTA rounds starts up and ends down to whole microseconds: less than 2 us for the window and for each event."""
    theirs = hta_of(folder)
    analysis = json.loads(support.expect_success(support.run("trace", "analyze", folder, "--json")))
    ours = {rank["rank"]: rank["breakdown"] for rank in analysis["ranks"]}
    assert ours and set(ours) == set(theirs), (folder, set(ours), set(theirs))
    for rank, mine in ours.items():
        for key, other in (("window_ns", "kernel_time(us)"), ("compute_ns", "compute_time(us)"), ("idle_ns", "idle_time(us)"),
                           ("non_compute_ns", "non_compute_time(us)")):
            bound = 2 * (1 if key == "window_ns" else mine["events"])
            found = theirs[rank][other]
            assert abs(mine[key] / 1000 - found) <= bound, f"{folder}, rank {rank}: {key} {mine[key]}, HTA {found} us, {bound} us allowed"


def main():
    for folder in sys.argv[1:]:  # other traces, by hand
        compare(pathlib.Path(folder))
    compare(support.ROOT / "test/golden/traces/zero3")  # recorded on two H200
    for seed in range(8):  # One step, since HTA drops the last of several, and no rows of cuda_sync, which it takes for work.
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            ranks = 1 + seed % 3
            for rank in range(ranks):
                trace = made_trace.made_trace(rank, ranks, seed, steps=1, sync=False)
                trace.write(folder / (f"rank{rank}_trace.json" + (".gz" if seed % 3 == 0 else "")))
            compare(folder)
    print("equal on 1 recorded and 8 made traces")


main()
