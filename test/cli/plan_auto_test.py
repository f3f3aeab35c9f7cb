"""dstrain plan --auto: rows by time, the default layouts, why others lost, a fragment; launch --auto trains with the first row."""
import json
import pathlib
import tempfile

from support import expect_success, metrics, only_run, run

RECIPE = """# tiny.yaml - a small Qwen2 on random tokens
model:     { name: qwen2, width: 32, layers: 3, heads: 4, kv_heads: 2, mlp_width: 64, vocab_size: 256 }
data:      { name: random, samples: 32, sequence: 16 }
batch:     { global: 8, micro: 4 }
optimizer: { name: adamw, lr: 1.0e-3 }
precision: { compute: fp32 }
parallel:  { backend: gloo }
run:       { steps: 3, checkpoint: { every: never } }
"""


def rows(*arguments):
    return json.loads(expect_success_json(run(*arguments, "--json")))


def expect_success_json(result):
    assert result.returncode == 0, result.stderr
    return result.stdout


with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    recipe, fragment = scratch / "tiny.yaml", scratch / "layout.yaml"
    recipe.write_text(RECIPE)

    # A large model on GPUs: sorted rows with terms that add up, families that name what they cost or why they cannot run.
    large = "recipes/qwen/qwen2.5-3b_metamathqa.yaml"
    for ranks in (2, 8, 64):
        plan = rows("plan", large, "--auto", "--ranks", ranks, "--machine", "h200", "--top", 5)
        steps = [row["step_s"] for row in plan["rows"]]
        # Layouts of few axes come first among those within 1 % of the shortest.
        axes = [sum(row[axis] > 1 for axis in ("pipeline", "tensor", "sequence", "expert")) for row in plan["rows"]]
        assert len(steps) == 5 and all(a <= b or (a <= 1.01 * min(steps) and few <= more) for a, b, few, more in zip(steps, steps[1:], axes, axes[1:])), (steps, axes)
        for row in plan["rows"] + plan["defaults"]:
            assert row["fits"] and 0 < row["mfu"] < 1 and row["rank_bytes"] <= row["limit_bytes"], row
            terms = sum(row[name] for name in ("compute_s", "exchange_s", "exposed_s", "bubble_s", "rest_s"))
            assert abs(terms - row["step_s"]) < 1e-6 * row["step_s"], row
            assert row["micro"] * row["micro_batches"] * row["data_ranks"] >= 64, row
        for family in plan["families"]:
            assert family.get("difference") or family.get("reason"), family
        assert plan["simulated"] <= 1000 and plan["built"] <= 20, plan
    text = expect_success(run("plan", large, "--auto", "--ranks", 2, "--machine", "h200"))
    assert "default layout" in text and "why others lost" in text and "pipeline 2" in text, text

    # What plan says of the first row's settings is what the row says: offloaded states, and two micro-batches of small kernels at once.
    at_once = {}
    h200 = ("--machine", "h200")
    for name, ranks, machine in (("recipes/quickstart.yaml", 4, ()), ("recipes/quickstart.yaml", 4, ("--per-node", 2)), (large, 64, h200),
                                 ("recipes/qwen/qwen2.5-3b_random_offload.yaml", 2, h200), ("recipes/bloom/bloom-7b1_squad_10k_offload.yaml", 1, h200),
                                 ("recipes/cnn/mobilenet-v2_random.yaml", 1, h200), ("recipes/cnn/ensemble_random.yaml", 1, h200)):
        plan = rows("plan", name, "--auto", "--ranks", ranks, *machine, "--top", 3)
        first = plan["rows"][0]
        at_once[name] = {row["concurrent"] for row in plan["rows"]}
        settings = [word for setting in first["settings"] for word in ("--set", setting)]
        same = json.loads(expect_success_json(run("plan", name, "--ranks", ranks, *machine, "--json", *settings)))
        assert (same["step_s"], same["memory"]["total_bytes"]) == (first["step_s"], first["rank_bytes"]), (name, same["step_s"], same["memory"], first)
    assert all(2 in at_once[name] for name in at_once if "cnn/" in name), at_once
    # Where two do not fit, one at a time is proposed.
    result = run("plan", name, "--machine", "h200", "--set", "batch.micro=16", "--set", "batch.concurrent=2", "--set", "memory.limit=3.7")
    assert result.returncode == 64 and "--set batch.concurrent=1 " in result.stderr, result

    # The fragment, in the place of the recipe's sections, is a recipe.
    expect_success(run("plan", recipe, "--auto", "--ranks", 2, "--write", fragment))
    kept = [line for line in RECIPE.splitlines() if not line.startswith(("batch:", "parallel:"))]
    joined = scratch / "joined.yaml"
    joined.write_text("\n".join(kept) + "\n" + fragment.read_text())
    expect_success(run("recipe", "check", joined))

    # Errors.
    for arguments, words in ((["--top", 3], "--auto"), (["--auto", "--ranks", 2, "--top", 0], "--top"),
                             (["--auto", "--ranks", 2, "--set", "memory.limit=0.001"], "no layout of 2 ranks")):
        result = run("plan", recipe, *arguments)
        assert result.returncode == 64 and words in result.stderr, (arguments, result.stderr)

    # A run with the first row; the recipe of the run says where its keys come from.
    output = scratch / "runs"
    said = expect_success(run("launch", recipe, "--auto", "--ranks", 2, "--set", f"run.output={output}"))
    assert "--auto: parallel.pipeline=" in said, said
    directory = only_run(output)
    assert len(metrics(directory)) == 3
    chosen = rows("plan", recipe, "--auto", "--ranks", 2, "--top", 1)["rows"][0]
    resolved = (directory / "recipe.yaml").read_text()
    assert "# --auto" in resolved, resolved
    assert json.loads((directory / "plan.json").read_text())["batch"]["micro"] == chosen["micro"]
print("plan --auto: rows, reasons, a fragment, a run")
