"""A tiny model whose samples are spread over CPU ranks trains and evaluates as on one rank; `dstrain plan` prices the recipes of long
samples: activations and exchanges of a rank."""
import tempfile

from support import expect_success, metrics, only_run, run

RECIPE = "recipes/qwen/qwen2.5-3b_random.yaml"
STEPS = 4
TINY = ["model.layers=2", "model.width=64", "model.heads=4", "model.kv_heads=2", "model.mlp_width=160", "model.vocab_size=512",
        "data.sequence=64", "data.samples=40", "batch.global=8", "batch.micro=4", "optimizer.lr=1e-3", "precision.compute=fp32",
        "parallel.backend=gloo", f"run.steps={STEPS}", "run.epochs=0", f"run.evaluate={STEPS}", "run.checkpoint.every=never"]
BOUND = 1e-5


def values_of(ranks, settings):
    with tempfile.TemporaryDirectory() as folder:
        arguments = [word for s in [*TINY, *settings, f"run.output={folder}"] for word in ("--set", s)]
        expect_success(run("launch", RECIPE, "--ranks", ranks, *arguments))
        steps, evaluations = metrics(only_run(folder)), metrics(only_run(folder), "evaluation")
    values = [steps[step][key] for step in range(1, STEPS + 1) for key in ("loss", "grad_norm")]
    return [*values, evaluations[STEPS]["loss"]]


expected = values_of(1, [])
for ranks, settings in ((2, ["parallel.sequence=2"]),
                        (2, ["parallel.sequence=2", "parallel.sequence_attention=heads", "parallel.zero.stage=2"]),
                        (4, ["parallel.sequence=2", "parallel.zero.stage=3"])):
    found = values_of(ranks, settings)
    difference = max(abs(a - b) / abs(b) for a, b in zip(found, expected, strict=True))
    print(f"{ranks} ranks, {' '.join(settings)}: {difference:.1e}")
    assert difference < BOUND, (found, expected)

for recipe, ranks in (("recipes/qwen/qwen2.5-3b_metamathqa_32k.yaml", 8), ("recipes/qwen/qwen2.5-3b_random_128k.yaml", 8)):
    plan = expect_success(run("plan", recipe, "--ranks", ranks))
    assert "all-gather of activations inside blocks" in plan and "sequence" in plan, plan
print("sequence: ok")
