"""Adapters end to end: exact resume, a base that changed is refused, export of the adapter and of the merged model."""
import json
import pathlib
import shutil
import tempfile

from support import expect_success, losses, only_run, run

SHORT = ["--set", "run.epochs=0", "--set", "run.steps=12", "--set", "batch.global=48", "--set", "batch.micro=8",
         "--set", "optimizer.warmup_steps=2", "--set", "run.evaluate=never", "--set", "run.checkpoint.every=6",
         "--set", "model.layers=2"]
LORA = ["--set", "lora.rank=4", "--set", "lora.dropout=0.1", "--set", "lora.also_train=[classifier]"]


def launch(output, *more, ranks=2):
    return run("launch", "recipes/quickstart.yaml", "--ranks", ranks, "--set", f"run.output={output}", *SHORT, *more)


def weights_of(base):
    return [*LORA, "--set", f"model.weights={base}"]


def tensors(path):
    """Names and shapes of a safetensors file."""
    data = path.read_bytes()
    header = json.loads(data[8:8 + int.from_bytes(data[:8], "little")])
    return {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}


with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    # A base: two of them that differ only in their seed.
    for seed in (1, 2):
        expect_success(launch(scratch / f"plain{seed}", "--set", f"run.seed={seed}", ranks=1))
        expect_success(run("checkpoint", "export", only_run(scratch / f"plain{seed}"), scratch / f"base{seed}"))
    base, other = scratch / "base1", scratch / "base2"

    text = expect_success(launch(scratch / "whole", *weights_of(base)))
    whole = only_run(scratch / "whole")
    # A [4, 128] and B [128, 4] of q_proj and v_proj in two layers, and the classifier, 10 x 128 + 10.
    plan = json.loads((whole / "plan.json").read_text())
    assert plan["num_trained_parameters"] == 2 * 2 * 2 * 512 + 1290 and "of them trained (" in text, (plan["num_trained_parameters"], text)
    plain = json.loads((only_run(scratch / "plain1") / "plan.json").read_text())
    assert plain["num_trained_parameters"] == plain["num_parameters"] > 0, plain
    checkpoint = whole / "checkpoints" / "step-00000006"
    state = json.loads((checkpoint / "MANIFEST.json").read_text())["state"]
    assert state["base"].startswith("xxh3-128 of its files: "), state["base"]
    saved = set().union(*(tensors(path) for path in checkpoint.glob("*.safetensors")))
    assert saved and all("lora_" in name or "classifier." in name for name in saved), saved

    resumed = scratch / "resumed" / whole.name
    shutil.copytree(whole, resumed)
    shutil.rmtree(resumed / "checkpoints" / "step-00000012")
    text = expect_success(launch(scratch / "resumed", *weights_of(base), "--resume", resumed))
    assert "resumed at step 6" in text, text
    assert losses(resumed) == losses(whole)

    # Another base, or none left out: refused, and said why.
    for wrong in (weights_of(other), LORA, ["--set", f"model.weights={base}"]):
        failed = launch(scratch / "resumed", *wrong, "--resume", checkpoint)
        assert failed.returncode == 74, (failed.returncode, failed.stdout, failed.stderr)
        assert "leaves out the frozen weights" in failed.stdout + failed.stderr, failed.stderr

    text = expect_success(run("checkpoint", "export", whole, scratch / "adapter"))
    assert "adapter in PEFT's layout" in text, text
    assert text.splitlines()[-1] == f"share it: hf upload ORG/NAME {scratch}/adapter", text
    config = json.loads((scratch / "adapter" / "adapter_config.json").read_text())
    assert config["r"] == 4 and config["target_modules"] == ["q_proj", "v_proj"], config
    assert config["modules_to_save"] == ["classifier"] and config["base_model_name_or_path"] == str(base), config
    adapter = tensors(scratch / "adapter" / "adapter_model.safetensors")
    assert adapter["base_model.model.vit.layers.1.attention.v_proj.lora_A.weight"] == [4, 128], adapter

    expect_success(run("checkpoint", "export", whole, scratch / "merged", "--merge"))
    assert tensors(scratch / "merged" / "model.safetensors") == tensors(base / "model.safetensors")
    merged, plain = ((scratch / name / "model.safetensors").read_bytes() for name in ("merged", "base1"))
    assert merged != plain

    # The exported adapter is a start, and the merged model a base.
    expect_success(launch(scratch / "again", *weights_of(base), "--set", f"lora.weights={scratch / 'adapter'}"))
    expect_success(launch(scratch / "onwards", *weights_of(scratch / "merged")))
    first = [losses(only_run(scratch / name))[1] for name in ("again", "onwards")]
    assert abs(first[0] - first[1]) < 0.05 * first[1], first  # apart by dropout alone

    failed = run("checkpoint", "export", only_run(scratch / "plain1"), scratch / "none", "--merge")
    assert failed.returncode == 64 and "no adapters" in failed.stderr, failed.stderr

    # Random weights leave no folder behind, but they can be drawn again.
    expect_success(launch(scratch / "random", *LORA))
    text = expect_success(run("checkpoint", "export", only_run(scratch / "random"), scratch / "drawn", "--merge"))
    assert len(tensors(scratch / "drawn" / "model.safetensors")) == len(tensors(base / "model.safetensors"))

    # Frozen weights without adapters are exported from their base, too.
    expect_success(launch(scratch / "frozen", "--set", f"model.weights={base}", "--set", "model.frozen=[\"vit.*\"]"))
    expect_success(run("checkpoint", "export", only_run(scratch / "frozen"), scratch / "thawed"))
    assert tensors(scratch / "thawed" / "model.safetensors") == tensors(base / "model.safetensors")
    assert (scratch / "thawed" / "model.safetensors").read_bytes() != plain
print("lora: ok")
