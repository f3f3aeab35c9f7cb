"""ZeRO++ over a slow link: ranks of one machine, half of which call themselves another host (NCCL_HOSTID), so that NCCL goes over loopback sockets between
the halves. Plain ZeRO-3, codes, and codes with a second shard train BLOOM-560m beside `dstrain plan --network`, for which torch measures the rate of a block's exchanges before and after each.

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
BASE = [f"batch.global={8 * RANKS}", "batch.micro=8", "data.sequence=1024", "run.steps=12", "parallel.zero.stage=3"]
CODES = ["precision.gather=int8", "precision.reduce=int4"]
FORMS = {"plain": [], "codes": CODES}
if RANKS >= 4:  # a second shard of one rank would be a copy of all parameters
    FORMS["codes, second shard"] = [*CODES, f"parallel.zero.second_shard={RANKS // 2}"]
# Two ranks get only half of what each gathers over the link.
NEEDED = 2.5 if RANKS >= 4 else 2
# A block's exchanges as a step has them: forward gathers alone, backward gathers beside reductions, each on a communicator of its own. GATHER and REDUCE: bytes
# of a parameter that travel.
EXCHANGES = """
import os, time, torch, torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
n = dist.get_world_size()
gather, reduce = float(os.environ["GATHER"]), float(os.environ["REDUCE"])
reducing = dist.new_group()
side = torch.cuda.Stream()
part = 12_600_000 // n  # a block's share
weights = torch.zeros(n * int(part * gather), dtype=torch.uint8, device="cuda")
gradients = torch.zeros(n * int(part * reduce / 4), device="cuda")
shard, total = torch.zeros_like(weights[: len(weights) // n]), torch.zeros_like(gradients[: len(gradients) // n])
times = []
for _ in range(12):
    torch.cuda.synchronize(); dist.barrier(); start = time.perf_counter()
    for _ in range(8):
        dist.all_gather_into_tensor(weights, shard)
    side.wait_stream(torch.cuda.current_stream())
    for _ in range(8):
        dist.all_gather_into_tensor(weights, shard)
        with torch.cuda.stream(side):
            dist.reduce_scatter_tensor(total, gradients, group=reducing)
    torch.cuda.synchronize(); times.append((time.perf_counter() - start) / 8)
if dist.get_rank() == 0:
    times = sorted(times[2:])
    print("rate", (n - 1) * (2 * shard.nbytes + total.nbytes) / times[len(times) // 2] / 1e9)
"""


def on_two_hosts(command, environment={}):
    """Runs it once a rank; returns the output of rank 0."""
    running = support.start_ranks(command, RANKS, RANKS, lambda rank: support.as_host(rank // (RANKS // 2)) | environment)
    try:
        texts = [process.communicate(timeout=150)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    assert all(process.returncode == 0 for process in running), "\n".join(text[-1500:] for text in texts)
    return texts[0]


def sets(settings):
    return [word for setting in settings for word in ("--set", setting)]


def link_rate(settings):
    """GB/s between the halves now, of messages as long as those of the form: loopback sockets change from one minute to the next."""
    lengths = {"GATHER": "1", "REDUCE": "0.5"} if settings else {"GATHER": "2", "REDUCE": "4"}
    text = on_two_hosts([sys.executable, "-c", EXCHANGES], lengths)
    return float(next(line for line in text.splitlines() if line.startswith("rate")).split()[1])


def main():
    if support.num_gpus() < RANKS:
        print(f"test/gpu/slow_link_test.py: wants {RANKS} GPUs and finds {support.num_gpus()}; nothing was tested")
        return 77
    measured, wrong = {}, []
    for name, settings in FORMS.items():
        before = link_rate(settings)
        with tempfile.TemporaryDirectory() as folder:
            on_two_hosts([support.DSTRAIN, "engine", RECIPE, *sets([*BASE, *settings, f"run.output={folder}"])])
            steps = list(support.metrics(support.only_run(folder)).values())
        after = link_rate(settings)
        rate = (before + after) / 2
        plan = support.run("plan", RECIPE, "--ranks", RANKS, "--per-node", RANKS // 2, "--network", rate, "--json", *sets([*BASE, *settings]))
        planned = json.loads(support.expect_success(plan))["step_s"]
        print(f"between the halves: {before:.2f} GB/s before, {after:.2f} after (sockets on one host, not RDMA)", flush=True)
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
