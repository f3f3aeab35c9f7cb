"""run.best: the best evaluation's checkpoint is kept, exported and found again; patience ends a run; a resume goes on counting."""
import json
import pathlib
import tempfile

from support import expect_success, only_run, run

SMALL = ["--set", "model.width=64", "--set", "model.mlp_width=64", "--set", "model.heads=2"]
SHORT = ["recipes/quickstart.yaml", "--ranks", 2, "--set", "run.epochs=0", "--set", "run.evaluate=4", "--set", "batch.global=64",
         "--set", "batch.micro=32", "--set", "model.layers=2", *SMALL]


def launch(folder, steps, *settings, code=0, resume=None):
    words = [word for setting in (f"run.output={folder}", f"run.steps={steps}", *settings) for word in ("--set", setting)]
    done = run("launch", *SHORT, *words, *(["--resume", resume] if resume else []))
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done.stdout + done.stderr


def record(folder):
    return json.loads((only_run(folder) / "best.json").read_text())


def kept(folder):
    return sorted(int(path.name.split("-")[1]) for path in (only_run(folder) / "checkpoints").iterdir() if path.is_dir())


def fold(evaluations, up, delta=0.0):
    best, since = None, 0
    for step, value in evaluations:
        gain = value is not None and (best is None or (value - best[1] if up else best[1] - value) > delta)
        best, since = ((step, value), 0) if gain else (best, since + 1)
    return best, since


with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)

    # A learning rate that destroys: the first evaluations are the best, and three without a gain end the run.
    grow = ["optimizer.lr=0.3", "optimizer.warmup_steps=0", "optimizer.schedule=constant", "run.checkpoint.keep=1", "run.checkpoint.every=4"]
    text = launch(scratch / "a", 200, "run.best.metric=loss", "run.best.patience=3", *grow)
    found = record(scratch / "a")
    best, since = fold(found["evaluations"], up=False)
    assert (found["step"], found["value"]) == best and since == found["without_gain"] == 3, found
    last = found["evaluations"][-1][0]
    assert last < 200 and last == best[0] + 12, found
    assert f"stopped at step {last}: 3 evaluations without a gain" in text and f"at step {best[0]}" in text, text
    assert kept(scratch / "a") == [best[0], last], kept(scratch / "a")

    # Exported is the best; prune leaves it; the newest where it is asked for, or the best is broken.
    def exported(name):
        return expect_success(run("checkpoint", "export", only_run(scratch / "a"), scratch / name))
    assert f"step {best[0]}," in exported("one")
    assert "keeps   the best" in expect_success(run("checkpoint", "prune", only_run(scratch / "a"), "--keep", 1))
    assert kept(scratch / "a") == [best[0], last]
    shard = next((only_run(scratch / "a") / f"checkpoints/step-{best[0]:08}").glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-8])
    done = run("checkpoint", "export", only_run(scratch / "a"), scratch / "two")
    assert done.returncode == 0 and f"step {last}," in done.stdout + done.stderr and "best checkpoint is passed over" in done.stderr, done
    # A resume of a run that gave up has nothing to do.
    text = launch(scratch / "a", 200, "run.best.metric=loss", "run.best.patience=3", *grow, resume="auto")
    assert record(scratch / "a") == found and "3 evaluations without a gain" in text, text

    # In two parts as in one, whichever way is up; a gain counts beyond min_delta alone.
    for metric, up, delta in (("accuracy", True, 0.02), ("loss", False, 0.0), ("top5", True, 0.0)):
        settings = [f"run.best.metric={metric}", f"run.best.min_delta={delta}", "run.checkpoint.every=8", "optimizer.schedule=constant"]
        whole, parts = scratch / f"whole-{metric}", scratch / f"parts-{metric}"
        launch(whole, 24, *settings)
        launch(parts, 16, *settings)
        launch(parts, 24, *settings, resume="auto")
        assert record(whole) == record(parts), (record(whole), record(parts))
        found = record(whole)
        best, since = fold(found["evaluations"], up, delta)
        assert (found["step"], found["value"]) == best and len(found["evaluations"]) == 6, found
        assert best[0] in kept(whole) and 24 in kept(whole), kept(whole)

    # A finished run is evaluated as it was, on as many ranks to the bit, on others nearly; also a checkpoint, and weights of a folder.
    whole = only_run(scratch / "whole-loss")
    found = json.loads((whole / "best.json").read_text())
    for ranks, share in ((2, 0.0), (1, 1e-6), (3, 1e-6)):
        batch = [] if ranks != 3 else ["--set", "batch.global=66", "--set", "batch.micro=22"]
        text = expect_success(run("evaluate", whole, "--ranks", ranks, *batch))
        made = max((whole / "evaluations").glob("*/evaluation.json"), key=lambda path: path.stat().st_mtime_ns)
        got = json.loads(made.read_text())
        assert abs(got["loss"] - found["value"]) <= share * found["value"] and got["step"] == found["step"] and got["ranks"] == ranks, (got, found)
        assert f"step-{found['step']:08}: accuracy" in text and got["samples"] == 360, text
    text = expect_success(run("evaluate", whole / f"checkpoints/step-{kept(scratch / 'whole-loss')[-1]:08}", "--ranks", 2))
    assert f"step-{kept(scratch / 'whole-loss')[-1]:08}: accuracy" in text, text
    expect_success(run("checkpoint", "export", whole, scratch / "folder"))
    text = expect_success(run("evaluate", "quickstart", "--ranks", 1, "--set", f"model.weights={scratch / 'folder'}", "--set", "model.layers=2", *SMALL,
                              "--set", f"run.output={scratch / 'folder-runs'}"))
    got = json.loads(next((scratch / "folder-runs").glob("*/evaluation.json")).read_text())
    assert abs(got["loss"] - found["value"]) <= 1e-6 * found["value"] and "the recipe's weights: accuracy" in text, (got, found)
    for source, what in ((scratch, "is neither a run nor a checkpoint"), ("nowhere", "no folder, no file and no recipe's name")):
        done = run("evaluate", source)
        assert done.returncode == 64 and what in done.stderr, (done.returncode, done.stderr)

    # Without checkpoints at all the best is saved; load: false leaves the newest.
    launch(scratch / "never", 12, "run.best.metric=loss", "run.checkpoint.every=never")
    assert record(scratch / "never")["step"] in kept(scratch / "never")
    launch(scratch / "newest", 200, "run.best.metric=loss", "run.best.patience=3", "run.best.load=false", *grow)
    assert f"step {record(scratch / 'newest')['evaluations'][-1][0]}," in \
        expect_success(run("checkpoint", "export", only_run(scratch / "newest"), scratch / "three"))

    for settings, what in ((["run.best.metric=loss", "run.evaluate=never"], "run.evaluate is never"),
                           (["run.best.metric=perplexity"], "takes images"), (["run.best.patience=3"], "run.best.metric none"),
                           (["run.best.metric=f2"], "run.best.metric")):
        done = run("recipe", "check", "recipes/quickstart.yaml", *[word for one in settings for word in ("--set", one)])
        assert what in done.stderr and (done.returncode == 64) == ("none" not in what), (what, done.returncode, done.stderr)
print("best: ok")
