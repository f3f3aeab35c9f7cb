"""dstrain trace analyze beside HolisticTraceAnalysis 0.5.0 on the same files: --as-hta is equal, the default figures are within 2 us an event."""
import functools
import json
import logging
import math
import pathlib
import re
import sys
import tempfile

try:
    import pandas
    from hta.trace_analysis import TraceAnalysis
except ImportError as error:
    print(f"skipped: {error}; scripts/setup --tests installs it")
    sys.exit(77)

import made_trace
import support

logging.disable(logging.CRITICAL)
# Rows of equal start: HTA leaves their order to a sort that is not stable, on which a few of its figures depend.
pandas.DataFrame.sort_values = functools.partialmethod(pandas.DataFrame.sort_values, kind="stable")


def rows(frame):
    """Rows of a frame as objects; NaN as None."""
    return [{str(k): none_of(v) for k, v in row.items()} for row in frame.to_dict("records")]


def none_of(value):
    return None if isinstance(value, float) and not math.isfinite(value) else value


def same(ours, theirs, what):
    assert len(ours) == len(theirs), f"{what}: {len(ours)} rows, HTA has {len(theirs)}\n{ours[:40]}\n{theirs[:40]}"
    for mine, other in zip(ours, theirs):
        assert set(mine) == set(other), f"{what}: {set(mine)} and {set(other)}"
        for key, value in other.items():
            got = mine[key]
            if isinstance(value, str) or value is None or got is None:
                equal = got == value
            else:  # stddev: the order of a sum of doubles; all else is equal
                equal = math.isclose(got, value, rel_tol=1e-9, abs_tol=1e-9) if key in ("stddev", "std", "mean", "mean (us)") else got == value
            assert equal, f"{what}, {key}: {got} and HTA {value}\n{mine}\n{other}"


def compare_with_hta(folder):
    files = {int(re.search(r"rank(\d+)_trace", path.name)[1]): str(path) for path in pathlib.Path(folder).glob("rank*_trace.json*")}
    hta = TraceAnalysis(trace_files=dict(sorted(files.items())), trace_dir=str(folder))
    ranks = sorted(hta.t.get_ranks())
    ours = json.loads(support.expect_success(support.run("trace", "analyze", folder, "--as-hta", "--json")))
    types, kernels = hta.get_gpu_kernel_breakdown(visualize=False)
    types = [row for row in rows(types) if row["sum"] != 0]
    same(sorted(ours["gpu_kernel_breakdown"]["kernel_type"], key=lambda r: r["kernel_type"]),
         sorted(types, key=lambda r: r["kernel_type"]), "kernel types")
    order = lambda r: (r["kernel_type"], r["name"], r["rank"])
    same(sorted(ours["gpu_kernel_breakdown"]["kernels"], key=order), sorted(rows(kernels), key=order), "kernels")
    same(ours["temporal_breakdown"], sorted(rows(hta.get_temporal_breakdown(visualize=False)), key=lambda r: r["rank"]), "temporal")
    same(ours["comm_comp_overlap"], sorted(rows(hta.get_comm_comp_overlap(visualize=False)), key=lambda r: r["rank"]), "overlap")
    same(ours["idle_time_breakdown"], rows(hta.get_idle_time_breakdown(ranks=ranks, visualize=False)[0]), "idle")
    queues = hta.get_queue_length_summary(ranks=ranks)
    queues.columns = queues.columns.droplevel(0)
    same(ours["queue_length_summary"], rows(queues.reset_index()), "queue")
    launches = hta.get_cuda_kernel_launch_stats(ranks=ranks, visualize=False)
    order = lambda r: (r["rank"], r["correlation"], r["gpu_duration"], r["launch_delay"])
    same(sorted(ours["cuda_kernel_launch_stats"], key=order),
         sorted(({"rank": rank, **row} for rank in ranks for row in rows(launches[rank])), key=order), "launches")
    return ours


def check_default_figures(folder, ours):
    """Where HTA is right, ours is exact; its rounding may move each event by less than 2 us."""
    exact = json.loads(support.expect_success(support.run("trace", "analyze", folder, "--json")))
    for rank, hta in zip(exact["ranks"], ours["temporal_breakdown"]):
        mine = rank["breakdown"]
        bound = 2 * mine["events"]
        for key, other in (("window_ns", "kernel_time(us)"), ("compute_ns", "compute_time(us)"), ("idle_ns", "idle_time(us)"),
                           ("non_compute_ns", "non_compute_time(us)")):
            difference = abs(mine[key] / 1000 - hta[other])
            assert difference <= bound, f"{key}: {mine[key]} ns and HTA {hta[other]} us, {bound} us allowed"


def main():
    for folder in sys.argv[1:]:  # other traces, by hand
        compare_with_hta(pathlib.Path(folder))
        print(f"equal: {folder}")
    for folder in ("pytorch_ddp", "pytorch_fsdp2", "zero3"):  # recorded on two H200; only what is read was kept
        compare_with_hta(support.ROOT / "test/golden/traces" / folder)
    for seed in range(12):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            ranks = 1 + seed % 3
            steps = 1 + seed % 4
            for rank in range(ranks):
                trace = made_trace.made_trace(rank, ranks, seed, steps=steps, sync=seed % 2 == 0)
                trace.write(folder / (f"rank{rank}_trace.json" + (".gz" if seed % 3 == 0 else "")))
            ours = compare_with_hta(folder)
            if steps == 1 and seed % 2:  # HTA drops no step and sees no cuda_sync
                check_default_figures(folder, ours)
    print("equal on 3 recorded and 12 made traces")


main()
