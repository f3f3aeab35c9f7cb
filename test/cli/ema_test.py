"""The average of the weights is evaluated beside them, saved, restored on any ranks, and exported."""
import pathlib
import shutil
import tempfile

from support import expect_success, losses, metrics, only_run, run

SHORT = ["--set", "run.epochs=0", "--set", "run.steps=20", "--set", "batch.global=48", "--set", "batch.micro=8", "--set", "model.layers=2",
         "--set", "run.evaluate=10", "--set", "run.checkpoint.every=10", "--set", "ema.decay=0.8", "--set", "ema.warmup=true"]


def launch(output, ranks, *more):
    return expect_success(run("launch", "recipes/quickstart.yaml", "--ranks", ranks, "--set", f"run.output={output}", *SHORT, *more))


with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    text = launch(scratch / "whole", 2)
    assert text.count("average of the weights: accuracy") == 3, text  # of two evaluations, and at the end
    whole = only_run(scratch / "whole")
    expected = metrics(whole, "evaluation")
    assert all(row["ema_loss"] != row["loss"] and 0 <= row["ema_accuracy"] <= 1 for row in expected.values()), expected

    for ranks, stage, tolerance in ((2, 2, 0), (3, 3, 1e-5), (1, 0, 1e-5)):
        again = scratch / f"on{ranks}" / whole.name
        shutil.copytree(whole, again)
        shutil.rmtree(again / "checkpoints" / "step-00000020")
        launch(again.parent, ranks, "--resume", again, "--set", f"parallel.zero.stage={stage}")
        found, wanted = metrics(again, "evaluation")[20], expected[20]
        for key in ("loss", "ema_loss"):
            assert abs(found[key] - wanted[key]) <= tolerance * wanted[key], (ranks, key, found, wanted)

    # A run that had no average begins one with its weights; the losses are those of a run without.
    launch(scratch / "without", 2, "--set", "ema.decay=0", "--set", "ema.warmup=false")
    without = only_run(scratch / "without")
    assert losses(without) == losses(whole)
    assert all(row["ema_loss"] is None for row in metrics(without, "evaluation").values())
    shutil.rmtree(without / "checkpoints" / "step-00000020")
    launch(scratch / "without", 2, "--resume", without)
    assert metrics(without, "evaluation")[20]["ema_loss"] is not None and losses(without) == losses(whole)

    def exported(name, *options):
        expect_success(run("checkpoint", "export", whole, scratch / name, *options))
        return (scratch / name / "model.safetensors").read_bytes()

    plain, average = exported("plain"), exported("average", "--ema")
    assert len(plain) == len(average) and plain != average
    refused = run("checkpoint", "export", without / "checkpoints" / "step-00000010", scratch / "none", "--ema")
    assert refused.returncode == 64 and "ema.decay is 0" in refused.stderr, refused
    refused = run("launch", "recipes/quickstart.yaml", *SHORT, "--set", "memory.offload.optimizer=pageable")
    assert refused.returncode == 64 and "ema.decay" in refused.stderr, refused
    plan = expect_success(run("plan", "recipes/quickstart.yaml", *SHORT))
    assert "of the weights over the steps" in plan, plan
print("ema: ok")
