"""ZeRO++ over a slow link: ranks of one machine, half of which call themselves another host (NCCL_HOSTID), so that NCCL goes over loopback sockets between
the halves. The rate of a block's exchanges is measured by torch; then plain ZeRO-3, codes, and codes with a second shard train BLOOM-560m, beside `dstrain plan --network`.

    DSTRAIN=dstrain python3 test/gpu/slow_link_test.py [RANKS]      # exit 77 with fewer GPUs; wants torch
"""

import json
import pathlib
import statistics
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import support  # noqa: E402

RANKS = int(sys.argv[1]) if sys.argv[1:] else 4
RECIPE = "recipes/bloom/bloom-560m_random.yaml"
BASE = [f"batch.global={8 * RANKS}", "batch.micro=8", "data.sequence=1024", "run.steps=10", "parallel.zero.stage=3"]
CODES = ["precision.gather=int8", "precision.reduce=int4"]
FORMS = {"plain": [], "codes": CODES}
if RANKS >= 4:  # a second shard of one rank would be a copy of all parameters
    FORMS["codes, second shard"] = [*CODES, f"parallel.zero.second_shard={RANKS // 2}"]
# Of two ranks, only half of what each gathers comes over the link.
NEEDED = 2.5 if RANKS >= 4 else 2
EXCHANGES = """
import os, time, torch, torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
n = dist.get_world_size()
part = 12_600_000 // n  # a block's share
weights, gradients = (torch.zeros(n * part, dtype=kind, device="cuda") for kind in (torch.bfloat16, torch.float32))
shard, total = torch.zeros_like(weights[:part]), torch.zeros_like(gradients[:part])
times = []
for _ in range(8):
    torch.cuda.synchronize(); dist.barrier(); start = time.perf_counter()
    for _ in range(8):
        dist.all_gather_into_tensor(weights, shard)
        dist.all_gather_into_tensor(weights, shard)
        dist.reduce_scatter_tensor(total, gradients)
    torch.cuda.synchronize(); times.append((time.perf_counter() - start) / 8)
if dist.get_rank() == 0:
    print("rate", (n - 1) * part * (2 + 2 + 4) / min(times[2:]) / 1e9)
"""


def on_two_hosts(command):
    """Runs it once a rank; returns the output of rank 0."""
    sockets = {"NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "4"}
    running = support.start_ranks(command, RANKS, RANKS, lambda rank: support.as_host(rank // (RANKS // 2)) | sockets)
    try:
        texts = [process.communicate(timeout=150)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    assert all(process.returncode == 0 for process in running), "\n".join(text[-1500:] for text in texts)
    return texts[0]


def sets(settings):
    return [word for setting in settings for word in ("--set", setting)]


def main():
    if support.num_gpus() < RANKS:
        print(f"test/gpu/slow_link_test.py: wants {RANKS} GPUs and finds {support.num_gpus()}; nothing was tested")
        return 77
    text = on_two_hosts([sys.executable, "-c", EXCHANGES])
    rate = float(next(line for line in text.splitlines() if line.startswith("rate")).split()[1])
    print(f"between the halves: {rate:.2f} GB/s (sockets on one host, not RDMA)", flush=True)
    measured, wrong = {}, []
    for name, settings in FORMS.items():
        with tempfile.TemporaryDirectory() as folder:
            on_two_hosts([support.DSTRAIN, "engine", RECIPE, *sets([*BASE, *settings, f"run.output={folder}"])])
            steps = list(support.metrics(support.only_run(folder)).values())
        plan = support.run("plan", RECIPE, "--ranks", RANKS, "--per-node", RANKS // 2, "--network", rate, "--json", *sets([*BASE, *settings]))
        planned = json.loads(support.expect_success(plan))["step_s"]
        measured[name] = statistics.median(step["step_s"] for step in steps[4:])
        difference = planned / measured[name] - 1
        print(f"{name}: {1e3 * measured[name]:.0f} ms, {measured['plain'] / measured[name]:.2f} times plain; planned {1e3 * planned:.0f} ms ({100 * difference:+.0f} %); "
              f"loss of the last step {steps[-1]['loss']:.4f}", flush=True)
        if abs(difference) > 0.15:
            wrong.append(name)
    assert measured["plain"] >= NEEDED * measured[list(FORMS)[-1]], measured
    assert not wrong, f"planned more than 15 % off: {wrong}"
    print("slow link: ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
