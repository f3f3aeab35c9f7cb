"""The main job: two ranks under ZeRO-2 learn the digits to 95 %, are evaluated, checkpointed and reported."""
import json
import tempfile

from support import expect_success, metrics, only_run, run

with tempfile.TemporaryDirectory() as scratch:
    text = expect_success(run("launch", "recipes/quickstart.yaml", "--ranks", 2, "--set", f"run.output={scratch}"))
    directory = only_run(scratch)
    evaluations = metrics(directory, "evaluation")
    last = evaluations[max(evaluations)]
    print(f"test accuracy {last['accuracy']:.4f} on {last['targets']} samples")
    assert last["accuracy"] >= 0.95, last
    assert last["targets"] == 360, last
    assert "test accuracy" in text and str(directory) in text, text
    for name in ("recipe.yaml", "plan.json", "environment.json", "events.jsonl", "ranks/rank0000.log",
                 "ranks/rank0001.log"):
        assert (directory / name).exists(), name
    json.loads((directory / "plan.json").read_text())
    listed = json.loads(expect_success(run("checkpoint", "list", directory, "--json")))
    assert len(listed) == 2, listed
    expect_success(run("checkpoint", "verify", directory))
    expect_success(run("checkpoint", "export", directory, f"{scratch}/exported"))
    # Its blocks are too small for two threads.
    said = "threads: 1 of 2, as the forward of the median block is planned with 0.51 ms on one thread"
    one = run("launch", "recipes/quickstart.yaml", "--ranks", 1, "--env", "OMP_NUM_THREADS=2", "--set", f"run.output={scratch}/one",
              "--set", "run.epochs=1", "--set", "run.evaluate=23")
    assert said in expect_success(one), one.stdout
    evaluated = run("evaluate", only_run(f"{scratch}/one"), "--ranks", 1, "--env", "OMP_NUM_THREADS=2")
    assert said in expect_success(evaluated), evaluated.stdout
    assert "threads" not in expect_success(run("evaluate", only_run(f"{scratch}/one"), "--ranks", 1, "--env", "OMP_NUM_THREADS=1"))
    verified = expect_success(run("verify", "recipes/quickstart.yaml", "--ranks", 2, "--steps", 3))
    assert "passed" in verified, verified
print("quickstart: ok")
