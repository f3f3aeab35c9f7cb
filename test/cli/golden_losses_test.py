"""Losses and gradient norms of the first steps of tiny models are those that test/golden/losses.json holds.

DSTRAIN_UPDATE_GOLDEN=1 writes the file anew. Another order of summation moves a loss by some 1e-6 of itself, a changed learning rate,
initialization, sample order, schedule or formula by far more; the last case shows that the bound lies between the two."""
import json
import os
import pathlib
import tempfile

from support import ROOT, expect_success, metrics, only_run, run

GOLDEN = ROOT / "test/golden/losses.json"
BOUND = 1e-5
STEPS = 8
COMMON = ["precision.compute=fp32", "parallel.backend=gloo", f"run.steps={STEPS}", "run.epochs=0", "run.evaluate=never",
          "run.checkpoint.every=never"]
LANGUAGE = ["model.layers=2", "model.width=64", "model.heads=4", "model.vocab_size=512", "data.sequence=32", "data.samples=64",
            "batch.global=8", "batch.micro=4", "optimizer.lr=1e-3"]
CASES = {
    "vit": ("recipes/quickstart.yaml", []),
    "vit, sgd": ("recipes/quickstart.yaml", ["optimizer.name=sgd", "optimizer.lr=0.1"]),
    "vit, label smoothing, accumulation": ("recipes/quickstart.yaml", ["optimizer.label_smoothing=0.1", "batch.micro=8"]),
    "bloom": ("recipes/bloom/bloom-560m_random.yaml", LANGUAGE),
    "qwen2": ("recipes/qwen/qwen2.5-3b_random.yaml", [*LANGUAGE, "model.kv_heads=2", "model.mlp_width=160"]),
    "qwen3": ("recipes/qwen/qwen2.5-3b_random.yaml", [*LANGUAGE, "model.name=qwen3-0.6b", "model.kv_heads=2", "model.mlp_width=160",
                                                      "model.head_dim=32"]),
    "llama": ("recipes/qwen/qwen2.5-3b_random.yaml", [*LANGUAGE, "model.name=llama-3.2-1b", "model.kv_heads=2",
                                                      "model.mlp_width=160", "model.head_dim=16"]),
    "qwen2_moe": ("recipes/qwen/qwen2.5-3b-moe_random.yaml",
                  [*LANGUAGE, "precision.states=fp32", "model.kv_heads=2", "model.mlp_width=160", "model.experts=4", "model.expert_width=48",
                   "model.shared_width=80"]),
    "qwen3_moe": ("recipes/qwen/qwen2.5-3b-moe_random.yaml",
                  [*LANGUAGE, "precision.states=fp32", "model.name=qwen3-30b-a3b", "model.kv_heads=2", "model.mlp_width=160", "model.head_dim=32",
                   "model.experts=6", "model.experts_per_token=3", "model.expert_width=48", "memory.recompute=blocks",
                   "experts.z_loss=0.001"]),
    "qwen2, lora": ("recipes/qwen/qwen2.5-3b_random.yaml",
                    [*LANGUAGE, "model.kv_heads=2", "model.mlp_width=160", "lora.rank=4", "lora.alpha=8"]),
}


def steps_of(recipe, settings):
    with tempfile.TemporaryDirectory() as folder:
        arguments = [word for s in [*COMMON, *settings, f"run.output={folder}"] for word in ("--set", s)]
        expect_success(run("engine", recipe, *arguments))
        lines = metrics(only_run(folder))
    return [[lines[step]["loss"], lines[step]["grad_norm"]] for step in range(1, STEPS + 1)]


def largest_difference(found, expected):
    return max(abs(a - b) / abs(b) for f, e in zip(found, expected, strict=True) for a, b in zip(f, e, strict=True))


found = {name: steps_of(*case) for name, case in CASES.items()}
if os.environ.get("DSTRAIN_UPDATE_GOLDEN"):
    GOLDEN.write_text("{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in found.items()) + "\n}\n")
expected = json.loads(GOLDEN.read_text())
assert set(expected) == set(CASES), set(expected) ^ set(CASES)
for name, steps in found.items():
    difference = largest_difference(steps, expected[name])
    print(f"{name}: {difference:.1e}")
    assert difference < BOUND, (name, steps, expected[name])

recipe, settings = CASES["qwen2"]
assert largest_difference(steps_of(recipe, [*settings, "optimizer.lr=1.01e-3"]), expected["qwen2"]) > BOUND
print("golden losses: ok")
