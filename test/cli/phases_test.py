"""Phases of a run: a frozen trunk, then all of it. Killed in any phase and resumed, a run is bit for bit the unbroken one; a phase is what a
run of its own would be that starts from the weights of the one before."""
import json
import os
import pathlib
import signal
import tempfile

from support import DSTRAIN, copy_until, expect_success, losses, metrics, only_run, rank_processes, run, start, start_ranks

RECIPE = """
model:     { name: vit-tiny, layers: 2, width: 32, heads: 2, mlp_width: 64, classes: 10, image_size: 8, patch_size: 4, channels: 1 }
data:      { name: digits }
batch:     { global: 48, micro: 8 }
optimizer: { lr: 1.0e-3, warmup_steps: 2 }
ema:       { decay: 0.9 }
phases:
  - { steps: 10, frozen: ["vit.*"], lr: 1.0e-2 }
  - { steps: 14, frozen: ["vit.embeddings.*"], warmup_steps: 0 }
  - steps: 8
parallel:  { zero: { stage: 2 }, backend: gloo }
run:       { evaluate: 8, checkpoint: { every: 4, keep: 100 } }
"""
ENDS = (10, 24, 32)


def launch(output, recipe, ranks, *more):
    return expect_success(run("launch", recipe, "--ranks", ranks, "--set", f"run.output={output}", *more))


def state(run_directory, step):
    return json.loads((run_directory / f"checkpoints/step-{step:08}/MANIFEST.json").read_text())


def tensors_of(manifest):
    """Names in the layout of the groups, and of what is listed by itself."""
    parts = [part for group in manifest["groups"] for parameter in group["parameters"] for part in parameter["parts"]]
    return {name for name, shape in parts} | {tensor["name"] for tensor in manifest["tensors"]}


def check_torchrun(recipe, scratch, expected):
    """Ranks that another launcher has started."""
    for rank in start_ranks([DSTRAIN, "engine", recipe, "--set", f"run.output={scratch / 'torchrun'}"], ranks=2, gpus=2):
        text = rank.communicate(timeout=120)[0]
        assert rank.returncode == 0, text
    assert losses(only_run(scratch / "torchrun")) == expected


with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    recipe = scratch / "phases.yaml"
    recipe.write_text(RECIPE)
    expect_success(run("recipe", "check", recipe))
    plan = expect_success(run("plan", recipe, "--ranks", 2))
    for words in ("phase 1 of 3: 10 steps, lr 0.01, frozen vit.*", "phase 2 of 3: 14 steps, lr 0.001, frozen vit.embeddings.*",
                  "phase 3 of 3: 8 steps, lr 0.001"):
        assert words in plan, plan
    planned = json.loads(expect_success(run("plan", recipe, "--ranks", 2, "--json")))["phases"]
    moments = [phase["memory"]["moments_bytes"] for phase in planned]
    assert len(planned) == 3 and moments[0] < moments[1] < moments[2], planned

    text = launch(scratch / "whole", recipe, 2)
    whole = only_run(scratch / "whole")
    expected = losses(whole)
    assert sorted(expected) == list(range(1, 33)), sorted(expected)
    assert "end of the phase after 10 of 32 steps" in text and "done after 32 of 32 steps" in text, text
    rates = {step: row["lr"] for step, row in metrics(whole).items()}
    assert rates[1] == 0.005 and rates[2] == 0.01 and rates[11] == 1e-3 and rates[25] == 0.0005 and rates[26] == 1e-3, rates
    assert sorted(metrics(whole, "evaluation")) == [8, 10, 16, 24, 32], metrics(whole, "evaluation")
    assert [state(whole, step)["state"].get("phase", 0) for step in (8, 10, 12, 24, 28, 32)] == [0, 0, 1, 1, 2, 2]
    names = [tensors_of(state(whole, end)) for end in ENDS]
    assert not any(name.startswith("vit.") for name in names[0]) and any("classifier" in name for name in names[0]), names[0]
    assert not any("vit.embeddings." in name for name in names[1]) and any("vit.embeddings." in name for name in names[2])
    verified = expect_success(run("verify", recipe, "--ranks", 2, "--steps", 2))
    assert verified.count("passed: the strategy computes what one rank computes") == 3, verified
    # The resolved recipe has the phases, and is a recipe.
    launch(scratch / "resolved", whole / "recipe.yaml", 2)
    assert losses(only_run(scratch / "resolved")) == expected

    # From inside each phase and from a boundary; on other ranks and under another stage.
    for step in (4, 10, 16, 28):
        again = copy_until(whole, scratch / f"from{step}" / whole.name, step)
        launch(again.parent, recipe, 2, "--resume", again)
        assert losses(again) == expected, step
        assert metrics(again, "evaluation")[32]["ema_loss"] == metrics(whole, "evaluation")[32]["ema_loss"], step
    for step, ranks, stage in ((4, 2, 3), (10, 1, 0)):
        again = copy_until(whole, scratch / f"on{ranks}" / whole.name, step)
        launch(again.parent, recipe, ranks, "--resume", again, "--set", f"parallel.zero.stage={stage}")
        assert all(abs(loss - expected[i]) <= 1e-5 * expected[i] for i, loss in losses(again).items()), (step, ranks)

    # Killed in its second phase, and started again by the launcher.
    process = start("launch", recipe, "--ranks", 2, "--max-restarts", 1, "--set", f"run.output={scratch / 'killed'}")
    killed = False
    while process.poll() is None and not killed:
        for directory in (scratch / "killed").glob("*/checkpoints/step-00000012"):
            ranks = rank_processes(directory.parents[1])
            if 1 in ranks:
                os.kill(ranks[1], signal.SIGKILL)
                killed = True
    text = process.communicate(timeout=120)[0]
    assert process.returncode == 0, text
    assert losses(only_run(scratch / "killed")) == expected, text

    check_torchrun(recipe, scratch, expected)

    # Exported from within a phase: what it had frozen is the base, random weights here.
    for step in (8, 32):
        expect_success(run("checkpoint", "export", whole / f"checkpoints/step-{step:08}", scratch / f"exported{step}"))

    for keys, part in ((["run.steps=3"], "run.steps"), (["phases.1.steps=0"], "phases.1"), (["phases.0.image_size=16"], "phases.0.image_size"),
                       (["phases.2.frozen=[\"classifier.*\"]"], "phases.2.frozen"), (["phases.7.lr=1"], "list of 3 items")):
        refused = run("plan", recipe, *(word for key in keys for word in ("--set", key)))
        assert refused.returncode == 64 and part in refused.stderr, (keys, refused)
    shorter = scratch / "shorter.yaml"
    shorter.write_text(RECIPE.replace("  - steps: 8\n", ""))
    refused = run("launch", shorter, "--ranks", 2, "--set", f"run.output={scratch / 'refused'}", "--resume", whole)
    assert refused.returncode == 64 and "phase 3" in refused.stdout + refused.stderr, refused
print("phases: ok")
