"""The tokens that temperature, top-k, top-p and min-p leave are those of transformers' processors, on 1,000 rows; usage: hf_sampler.py
SAMPLER_PROBE; 77 where transformers is not installed."""
import subprocess
import sys
import tempfile

try:
    import torch
    from safetensors.torch import save_file
    from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper
except ImportError as missing:
    print(f"skipped: {missing}")
    raise SystemExit(77)

torch.manual_seed(11)
rows = torch.cat([torch.randn(250, 300), 4 * torch.randn(250, 300), torch.randn(250, 300).round(), 12 * torch.rand(250, 300) ** 4])
different = 0
with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
    save_file({"logits": rows}, file.name)
    for temperature, top_k, top_p, min_p in [(1, 0, 1, 0), (0.7, 20, 1, 0), (1.3, 0, 0.9, 0), (1, 0, 1, 0.1), (0.8, 50, 0.95, 0.02), (1, 1, 1, 0),
                                             (2, 0, 1e-6, 0), (1, 0, 1, 1), (1, 1000, 0.5, 0.5)]:
        scores = rows.clone()
        for use, make in [(temperature != 1, lambda: TemperatureLogitsWarper(float(temperature))), (top_k > 0, lambda: TopKLogitsWarper(top_k)),
                          (top_p < 1, lambda: TopPLogitsWarper(float(top_p))), (min_p > 0, lambda: MinPLogitsWarper(float(min_p)))]:
            if use:
                scores = make()(None, scores)
        wanted = [row.isfinite().nonzero().flatten().tolist() for row in scores]
        done = subprocess.run([sys.argv[1], file.name, *map(str, (temperature, top_k, top_p, min_p))], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found = [list(map(int, line.split())) for line in done.stdout.splitlines()]
        assert len(found) == len(wanted)
        for number, (ours, theirs, row) in enumerate(zip(found, wanted, rows)):
            if ours != theirs:
                # Equal scores have no order of their own, and a sum that stands at the bound is rounded.
                assert abs(len(ours) - len(theirs)) <= 1, (temperature, top_k, top_p, min_p, len(ours), len(theirs))
                values = row[sorted(set(ours) ^ set(theirs))]
                assert len(ours) != len(theirs) or values.unique().numel() == 1, (temperature, top_k, top_p, min_p, values)
                different += not 500 <= number < 750  # the rounded rows are full of equal scores
assert different < 40, f"{different} of 6,750 rows keep other tokens"
print(f"sampler: ok, {different} of 6,750 rows at a bound")
