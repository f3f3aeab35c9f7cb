"""precision.states fp32_split: losses of fp32 states but for ties, two bytes less for each parameter, checkpoints that either goes on from."""
import json
import pathlib
import shutil
import tempfile

from support import expect_success, losses, only_run, run

SMALL = ["model.layers=2", "model.width=64", "model.mlp_width=128", "model.heads=2", "precision.compute=bf16", "run.epochs=0", "run.steps=12",
         "run.evaluate=never", "batch.micro=4", "batch.global=8", "run.checkpoint.every=6"]


def words(settings):
    return [word for setting in settings for word in ("--set", setting)]


def launch(output, *settings, more=(), ranks=2):
    expect_success(run("launch", "recipes/quickstart.yaml", "--ranks", ranks, *words([*SMALL, f"run.output={output}", *settings]), *more))
    return only_run(output)


def plan(states):
    done = run("plan", "recipes/quickstart.yaml", "--ranks", 1, "--json", *words([*SMALL, f"precision.states={states}"]))
    expect_success(done)
    return json.loads(done.stdout)["memory"]


def test_layouts(folder):
    whole = losses(launch(folder / "fp32", "precision.states=fp32"))
    split = losses(launch(folder / "split", "precision.states=fp32_split"))
    assert whole.keys() == split.keys()
    far = max(abs(split[step] - whole[step]) / whole[step] for step in whole)
    assert far < 1e-3, (split, whole)
    for stage in (0, 2, 3):
        found = losses(launch(folder / f"stage{stage}", "precision.states=fp32_split", f"parallel.zero.stage={stage}"))
        assert max(abs(found[step] - split[step]) / split[step] for step in split) < 1e-3, (stage, found, split)
    print(f"losses of split states differ by {far:.1e} from those of fp32")


def test_memory():
    whole, split = plan("fp32"), plan("fp32_split")
    assert 2 * split["master_bytes"] == whole["master_bytes"] > 0, (whole, split)
    changed = {key for key in whole if whole[key] != split[key]}
    assert changed <= {"master_bytes", "allocated_bytes", "total_bytes"}, changed


def test_resumed(folder):
    """Half of the steps with one, the other half with the other: the checkpoint holds the same numbers."""
    first = launch(folder / "split2", "precision.states=fp32_split", "run.checkpoint.keep=5")
    for states, same in (("fp32_split", True), ("fp32", False)):
        again = folder / f"to-{states}" / first.name
        shutil.copytree(first, again)
        for checkpoint in (again / "checkpoints").iterdir():
            if checkpoint.name.endswith("12"):
                shutil.rmtree(checkpoint)
        launch(again.parent, f"precision.states={states}", more=("--resume", again))
        found, expected = losses(again), losses(first)
        assert found.keys() == expected.keys()
        if same:
            assert found == expected
        assert max(abs(found[step] - expected[step]) / expected[step] for step in expected) < 1e-3, (states, found, expected)


def test_refused():
    done = run("plan", "recipes/quickstart.yaml", "--ranks", 1, *words([*SMALL, "precision.compute=fp32", "precision.states=fp32_split"]))
    assert done.returncode != 0 and "fp32_split states need a bf16 computation, precision.compute is fp32" in done.stderr, done.stderr


with tempfile.TemporaryDirectory() as scratch:
    folder = pathlib.Path(scratch)
    test_layouts(folder)
    test_memory()
    test_resumed(folder)
    test_refused()
print("split states: ok")
