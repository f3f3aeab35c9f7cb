"""`dstrain trace merge` on made traces of many ranks: bounded memory at any size, equal slices in both formats, and pftrace as
Perfetto's own description of the format reads it.

    trace_merge_test.py [MEGABYTES [RANKS [FOLDER]]]     all traces together; default 50 and 8
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import support

MEGABYTES = float(sys.argv[1]) if len(sys.argv) > 1 else 50
RANKS = int(sys.argv[2]) if len(sys.argv) > 2 else 8
# The limit for any size in JSON; pftrace holds one rank.
MOST_RSS_MIB = 256


def events(count):
    """Launches, kernels, arrows and collectives, as Kineto writes them; all on two streams."""
    lines = []
    for i in range(count):
        start = i * 20_000 + i % 7
        time_us = f"{start // 1000}.{start % 1000:03}"
        lines.append(f'  {{\n    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 4242, "tid": 4242,\n'
                     f'    "ts": {time_us}, "dur": 2.5,\n    "args": {{\n      "External id": {i}, "cbid": 211, "correlation": {i}\n'
                     f'    }}\n  }}')
        more = ""
        if i % 10 == 0:
            more = (f', "Collective name": "allreduce", "Process Group Name": "0", "Group size": {RANKS}, "Seq": {i},'
                    f' "In msg nelems": 1048576, "Out msg nelems": 1048576, "dtype": "BFloat16"')
        later = start + 5000
        lines.append(f'  {{\n    "ph": "X", "cat": "kernel", "name": "void at::native::vectorized_elementwise_kernel<4, at::native::'
                     f'CUDAFunctor_add<float>, std::array<char*, 3ul> >(int, std::array<char*, 3ul>) {i % 50}", "pid": 0, "tid": '
                     f'{7 + i % 2},\n    "ts": {later // 1000}.{later % 1000:03}, "dur": 41.25,\n    "args": {{\n      "device": 0, '
                     f'"stream": {7 + i % 2}, "correlation": {i}, "grid": [512, 1, 1], "block": [128, 1, 1]{more}\n    }}\n  }}')
        lines.append(f'  {{\n    "ph": "s", "id": {i}, "pid": 4242, "tid": 4242, "ts": {time_us},\n    "cat": "ac2g", "name": "ac2g"\n  }}')
        lines.append(f'  {{\n    "ph": "f", "id": {i}, "pid": 0, "tid": {7 + i % 2}, "ts": {later // 1000}.{later % 1000:03},\n'
                     f'    "cat": "ac2g", "name": "ac2g", "bp": "e"\n  }}')
    return ",\n".join(lines)


def write_traces(folder):
    """Launches per rank, and bytes of all traces."""
    per_launch = len(events(200)) / 200
    count = max(20, int(MEGABYTES * 1e6 / RANKS / per_launch))
    body = events(count)
    total = 0
    for rank in range(RANKS):
        head = {"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": RANKS},
                "dstrain": {"run": "made", "host": f"n{rank // 8}", "program": "1", "incomplete": ""},
                "baseTimeNanoseconds": 1_700_000_000_000_000_000 + rank // 8 * 3_000_000}
        text = json.dumps(head)[:-1] + ',\n"traceEvents": [\n' + body + "\n]}\n"
        (folder / f"rank{rank}_trace.json").write_text(text)
        total += len(text)
    return count, total


def merge(folder, output, *options):
    """Peak MiB and seconds of a merge."""
    begin = time.monotonic()
    process = subprocess.Popen([support.DSTRAIN, "trace", "merge", str(folder), "-o", str(output), *options], stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True)
    text = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = status
    assert status == 0, text
    return usage.ru_maxrss / 1024, time.monotonic() - begin, text


def count_json(path):
    slices = flows = 0
    with open(path, encoding="utf-8") as lines:  # an event a line
        for line in lines:
            slices += '"ph": "X"' in line
            flows += '"ph": "s"' in line or '"ph": "f"' in line
    return slices, flows


def check_pftrace(path, count):
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto
    trace = proto.Trace()
    trace.ParseFromString(path.read_bytes())
    begins = ends = flows = 0
    open_slices, tracks, names, last = {}, {}, {}, {}
    for packet in trace.packet:
        sequence = packet.trusted_packet_sequence_id
        if packet.HasField("interned_data"):
            names[sequence] = {n.iid: n.name for n in packet.interned_data.event_names}
        if packet.HasField("track_descriptor"):
            tracks[packet.track_descriptor.uuid] = packet.track_descriptor
        if not packet.HasField("track_event"):
            continue
        event = packet.track_event
        track = event.track_uuid
        assert track in tracks, "an event on a track that was not described"
        assert packet.timestamp >= last.get(track, 0), "a track goes back in time"
        last[track] = packet.timestamp
        if event.type == event.TYPE_SLICE_BEGIN:
            begins += 1
            flows += len(event.flow_ids)
            assert names[sequence][event.name_iid]
            json.loads(event.debug_annotations[0].legacy_json_value)
            open_slices[track] = open_slices.get(track, 0) + 1
        elif event.type == event.TYPE_SLICE_END:
            ends += 1
            open_slices[track] -= 1
            assert open_slices[track] >= 0
    assert begins == ends == 2 * count * RANKS, (begins, ends, count)
    assert flows == 2 * count * RANKS, flows
    assert not any(open_slices.values())
    shown = {t.name for t in tracks.values()}
    assert {"rank 0", f"rank {RANKS - 1}", "7", "7 (2)"} <= shown, shown


def main():
    folder = pathlib.Path(sys.argv[3] if len(sys.argv) > 3 else tempfile.mkdtemp())
    folder.mkdir(exist_ok=True)
    try:
        count, total = write_traces(folder)
        output = folder / "merged_trace.json"
        rss, seconds, text = merge(folder, output)
        print(f"json: {total / 1e6:.0f} MB of {RANKS} ranks in {seconds:.1f} s, {total / 1e6 / seconds:.0f} MB/s, {rss:.0f} MiB")
        assert rss < MOST_RSS_MIB, f"{rss} MiB"
        assert RANKS <= 8 or "clock of n1: -3000." in text or "clock of n1: -2999." in text, text
        assert count_json(output) == (2 * count * RANKS, 2 * count * RANKS)
        output.unlink()
        pftrace = folder / "merged_trace.pftrace"
        rss, seconds, text = merge(folder, pftrace)
        print(f"pftrace: {seconds:.1f} s, {rss:.0f} MiB, {pftrace.stat().st_size / total:.2f} of the JSON")
        assert rss < 1024, f"{rss} MiB"
        if total > 500e6:
            return 0
        try:
            import perfetto.protos.perfetto.trace.perfetto_trace_pb2  # noqa: F401
        except ImportError:
            print("skipped: the Python package perfetto is not installed, so pftrace was not read back")
            return 77
        check_pftrace(pftrace, count)
    finally:
        for path in folder.glob("*"):
            path.unlink()
        folder.rmdir()
    return 0


if __name__ == "__main__":
    sys.exit(main())
