"""Traces as PyTorch's profiler writes them for a GPU, made from a seed: several streams, odd nanoseconds, collectives that all ranks share."""
import gzip
import json
import random


class MadeTrace:
    """One rank. Times are whole nanoseconds; the file has microseconds with three digits."""

    def __init__(self, rank, world_size):
        self.rank, self.world_size = rank, world_size
        self.events = []
        self.correlation = 70_000  # HTA 0.5.0 with pandas 3 fails on numbers of fewer bits than its row numbers

    def add(self, category, name, start_ns, duration_ns, pid, tid, **args):
        self.events.append({"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid,
                            "ts": start_ns / 1000, "dur": duration_ns / 1000, "args": args})

    def launch(self, category, name, call_start, call_duration, start, duration, stream, call, **args):
        self.correlation += 1
        self.add("cuda_runtime", call, call_start, call_duration, 100, 100, **{"cbid": 211, "correlation": self.correlation})
        self.add(category, name, start, duration, 0, stream,
                 **{"device": 0, "context": 1, "stream": stream, "correlation": self.correlation, **args})

    def object(self):
        return {"schemaVersion": 1, "baseTimeNanoseconds": 1700000000000000000, "displayTimeUnit": "ms",
                "distributedInfo": {"backend": "nccl", "rank": self.rank, "world_size": self.world_size},
                "traceEvents": self.events}

    def write(self, path):
        text = json.dumps(self.object())
        if str(path).endswith(".gz"):
            with gzip.open(path, "wt") as file:
                file.write(text)
        else:
            path.write_text(text)


def made_trace(rank, world_size, seed, steps=3, kernels=60, sync=True):
    """Like a step of DDP: compute on stream 7, collectives on 20, copies on 7 and 24; the kernels of a stream do not overlap."""
    common = random.Random(seed)  # what all ranks share
    own = random.Random(f"{seed} {rank}")
    trace = MadeTrace(rank, world_size)
    host = 5_000_000_123
    free = {7: host, 20: host, 24: host}
    names = [f"void at::native::elementwise_kernel<{i}>(int)" for i in range(14)] + ["sgemm_128x64"]
    sequence = 0
    for step in range(steps):
        step_start = host
        trace.add("cpu_op", "aten::zero_", host, 900, 100, 100)
        for _ in range(kernels):
            host += own.randrange(300, 9000)
            call = own.randrange(400, 4800)
            kind = common.random()
            stream = 7 if kind < 0.72 else 20 if kind < 0.85 else 24 if kind < 0.95 else 7
            start = max(free[stream] + own.choice([0, 1, 800, 1731, 33_000]), host + call + own.randrange(0, 3000))
            duration = own.choice([own.randrange(150, 999), own.randrange(1000, 20_000), own.randrange(20_000, 90_000)])
            if stream == 20:
                sequence += 1
                operation, kernel = common.choice([("allreduce", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)"),
                                                   ("_allgather_base", "ncclDevKernel_AllGather_RING_LL(args)"),
                                                   ("_reduce_scatter_base", "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(args)")])
                elements = common.choice([1024, 1 << 20])
                trace.launch("kernel", kernel, host, call, start, duration, stream, "cudaLaunchKernelExC",
                             **{"Collective name": operation, "In msg nelems": elements, "Out msg nelems": elements,
                                "Group size": world_size, "dtype": "Float", "Seq": sequence, "Process Group Name": "0",
                                "Process Group Ranks": str(list(range(world_size)))})
            elif stream == 24:
                trace.launch("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", host, call, start, duration, stream,
                             "cudaMemcpyAsync", bytes=own.randrange(1, 1 << 20))
            elif kind >= 0.95:
                trace.launch("gpu_memset", "Memset (Device)", host, call, start, duration, stream, "cudaMemsetAsync", bytes=4096)
            else:
                trace.launch("kernel", own.choice(names), host, call, start, duration, stream, "cudaLaunchKernel")
            free[stream] = start + duration
            host += call
        if sync:
            trace.correlation += 1
            wait = max(free.values()) - host
            trace.add("cuda_runtime", "cudaDeviceSynchronize", host, wait + 700, 100, 100, cbid=165, correlation=trace.correlation)
            trace.add("cuda_sync", "Context Sync", host + 200, max(wait, 1), 0, "-1", stream=-1, correlation=trace.correlation)
            trace.correlation += 1
            trace.add("cuda_runtime", "cudaStreamWaitEvent", host + 100, 300, 100, 100, correlation=trace.correlation)
            trace.add("cuda_sync", "Stream Wait Event", host + 150, 40_123, 0, 7, stream=7, correlation=trace.correlation)
            host = max(free.values()) + 1500
        trace.add("user_annotation", f"ProfilerStep#{step + 5}", step_start, host - step_start, 100, 100)
        trace.add("gpu_user_annotation", f"ProfilerStep#{step + 5}", step_start + 3000, host - step_start, 0, 7)
    return trace
