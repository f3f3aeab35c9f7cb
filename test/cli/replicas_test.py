"""Ranks that hold wrong weights: named by host and rank, exit code 93, before the next save; the last checkpoint goes on as if nothing was."""
import json
import os
import pathlib
import re
import socket
import tempfile

from support import expect_success, losses, only_run, run

SETTINGS = ["--set", "model.layers=2", "--set", "model.width=32", "--set", "model.mlp_width=32", "--set", "model.heads=2", "--set", "run.epochs=0",
            "--set", "run.steps=24", "--set", "run.compare_replicas=5", "--set", "run.evaluate=never", "--set", "run.checkpoint.every=6",
            "--set", "batch.micro=4"]
TENSOR = "vit.embeddings.cls_token"


def launch(output, ranks, *more, flip=None):
    environment = {"DSTRAIN_FLIP": flip, "DSTRAIN_TESTING": "1"} if flip else {}
    result = run("launch", "recipes/quickstart.yaml", "--ranks", ranks, "--set", f"batch.global={4 * ranks}", "--set", f"run.output={output}",
                 *SETTINGS, *more, env=os.environ | environment)
    return result.returncode, result.stdout + result.stderr


def events(directory, kind):
    lines = [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


def test_named_and_resumed(folder, stage):
    """The wrong bit comes after the save of step 12; the comparison of step 15 finds it, before the save of step 18."""
    settings = ["--set", f"parallel.zero.stage={stage}"]
    code, text = launch(folder / f"good{stage}", 3, *settings)
    assert code == 0, text
    good = only_run(folder / f"good{stage}")
    saves = "states 4 times, " if stage == 0 else ""
    assert f"replicas compared: {saves}weights 4 times; all ranks held the same" in text, text
    assert [event["step"] for event in events(good, "replicas_equal") if event["what"] == "weights"] == [5, 10, 15, 20]

    # What ZeRO-1 and 2 gather anew in each step is wrong in the step of the comparison alone.
    output = folder / f"wrong{stage}"
    code, text = launch(output, 3, *settings, flip=f"1:{13 if stage == 0 else 15}:{TENSOR}:21")
    assert code == 93, (code, text)
    directory = only_run(output)
    host = socket.gethostname()
    words = f"wrong replica: rank 1 on {host} holds other weights than most ranks that should hold the same, after step 15"
    assert f"rank 1 failed at step 14" in text and words in text, text
    failure = json.loads((directory / "failure.json").read_text())
    assert failure["exit_code"] == 93 and failure["root"]["kind"] == "replica" and failure["root"]["rank"] == 1, failure
    differ, = events(directory, "replicas_differ")
    assert differ["step"] == 15 and differ["who"] == f"rank 1 on {host}" and differ["what"] == "weights", differ
    assert [p.name for p in (directory / "checkpoints").iterdir() if "12" in p.name] == ["step-00000012"], text
    assert not [p.name for p in (directory / "checkpoints").iterdir() if "18" in p.name]
    expect_success(run("checkpoint", "verify", directory))
    code, text = launch(output, 3, *settings, "--resume", directory)
    assert code == 0, text
    assert losses(directory) == losses(good)
    report = expect_success(run("report", directory))
    assert re.search(r"several hold \d+ times, and\s+differed 1\s+time", report) and re.search(r"replica +1 ", report), report


def test_before_a_save(folder):
    """A bit that is wrong two steps before a save is found by the save."""
    code, text = launch(folder / "save", 3, "--set", "parallel.zero.stage=0", "--set", "run.compare_replicas=1000", flip=f"2:10:{TENSOR}:21")
    assert code == 93, (code, text)
    directory = only_run(folder / "save")
    assert "holds other states than most ranks" in text and "after step 12" in text, text
    assert [p.name for p in (directory / "checkpoints").iterdir()] == ["step-00000006"]


def test_two_ranks(folder):
    code, text = launch(folder / "two", 2, "--set", "parallel.zero.stage=0", flip=f"1:2:{TENSOR}:21")
    assert code == 93, (code, text)
    host = socket.gethostname()
    assert f"replicas differ: rank 0 on {host}, rank 1 on {host} should hold the same weights" in text, text


def test_long_lora(folder):
    """No false alarm in a longer run of adapters on a frozen model, stopped and resumed, in bf16."""
    settings = ["--ranks", "3", "--set", "batch.global=6", "--set", "batch.micro=2", "--set", "run.steps=150", "--set", "run.epochs=0", "--set",
                "run.compare_replicas=1", "--set", "run.evaluate=never", "--set", "lora.rank=2", "--set", "lora.targets=[query, value]", "--set",
                "model.layers=2", "--set", "model.width=32", "--set", "model.mlp_width=32", "--set", "model.heads=2", "--set",
                "precision.compute=bf16", "--set", f"run.output={folder / 'lora'}", "--set", "run.checkpoint.every=40"]
    expect_success(run("launch", "recipes/quickstart.yaml", *settings, "--set", "run.steps=70", "--set", "optimizer.schedule=constant"))
    directory = only_run(folder / "lora")
    text = expect_success(run("launch", "recipes/quickstart.yaml", *settings, "--set", "optimizer.schedule=constant", "--resume", directory))
    assert re.search(r"replicas compared: (states \d times, )?weights 80 times; all ranks held the same", text), text


def test_refused(folder):
    result = run("launch", "recipes/quickstart.yaml", "--ranks", 2, "--set", f"run.output={folder / 'refused'}", *SETTINGS, "--set",
                 "batch.global=8", env=os.environ | {"DSTRAIN_FLIP": f"1:2:{TENSOR}:21"})
    text = result.stdout + result.stderr
    assert result.returncode == 64 and "DSTRAIN_FLIP is set, which makes a rank train wrong weights" in text, (result.returncode, text)


with tempfile.TemporaryDirectory() as scratch:
    folder = pathlib.Path(scratch)
    for stage in (0, 2):
        test_named_and_resumed(folder, stage)
    test_before_a_save(folder)
    test_two_ranks(folder)
    test_long_lora(folder)
    test_refused(folder)
print("replicas: ok")
