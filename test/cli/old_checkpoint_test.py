"""A run that was saved in format 2 of the manifest goes on, with the losses that the run which saved it had, and saves in format 3, which the
next run goes on from. test/checkpoint/version_2_run is step 10 of 20 on three ranks, with the losses that followed."""
import json
import math
import pathlib
import tempfile

from support import ROOT, run

SAVED = ROOT / "test/checkpoint/version_2_run"
SETTINGS = ["run.epochs=0", "run.steps=20", "batch.global=24", "batch.micro=4", "model.layers=1", "model.width=16", "model.mlp_width=16",
            "model.heads=2", "run.evaluate=never", "run.checkpoint.every=5", "run.checkpoint.keep=5"]


def go_on(folder, name, checkpoint):
    """The new run's directory, and its losses by step."""
    words = [word for setting in [*SETTINGS, f"run.output={folder / name}"] for word in ("--set", setting)]
    done = run("launch", "recipes/quickstart.yaml", "--ranks", 3, "--env", "OMP_NUM_THREADS=1", "--resume", checkpoint, *words)
    assert done.returncode == 0, (done.stdout, done.stderr)
    made_run, = (folder / name).iterdir()
    lines = [json.loads(line) for line in (made_run / "metrics.jsonl").read_text().splitlines()]
    return made_run, {line["step"]: line["loss"] for line in lines if line["kind"] == "step"}


def version(checkpoint):
    return json.loads((checkpoint / "MANIFEST.json").read_text())["version"]


with tempfile.TemporaryDirectory() as made:
    folder = pathlib.Path(made)
    assert version(SAVED / "step-00000010") == 2
    expected = {int(step): loss for step, loss in json.loads((SAVED / "losses.json").read_text()).items()}
    first, found = go_on(folder, "first", SAVED / "step-00000010")
    assert sorted(found) == sorted(expected), found
    for step, loss in expected.items():  # equal bit for bit where the processor has the same instructions
        assert math.isclose(found[step], loss, rel_tol=1e-5), (step, loss, found[step])
    print(f"losses equal bit for bit: {sum(found[step] == loss for step, loss in expected.items())} of {len(expected)}")

    middle = first / "checkpoints/step-00000015"
    manifest = json.loads((middle / "MANIFEST.json").read_text())
    assert manifest["version"] == 3 and len(manifest["files"]) == 3 and not manifest["tensors"], manifest["tensors"]
    second, again = go_on(folder, "second", middle)
    assert again == {step: found[step] for step in range(16, 21)}, (again, found)
    listed = run("checkpoint", "list", first)
    assert listed.returncode == 0 and listed.stdout.count("complete") == 2, listed
    assert run("checkpoint", "verify", second).returncode == 0
    print(f"manifest of format 3: {(middle / 'MANIFEST.json').stat().st_size} bytes, of format 2: "
          f"{(SAVED / 'step-00000010/MANIFEST.json').stat().st_size}")
