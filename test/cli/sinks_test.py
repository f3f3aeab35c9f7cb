"""Files of Weights & Biases, of Prometheus and of samples that a run leaves, read by their own programs where these are installed."""
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import zlib

from support import expect_success, metrics, only_run, rank_processes, run, start
from wandb_server import WandbServer

try:
    from wandb.proto import wandb_internal_pb2 as protocol
except ImportError:
    print("sinks: skipped, the wandb package is not installed (scripts/setup --tests)")
    sys.exit(77)

SETTINGS = ["recipes/quickstart.yaml", "--set", "model.layers=2", "--set", "run.epochs=0", "--set", "run.checkpoint.every=never",
            "--set", "optimizer.warmup_steps=1", "--set", "metrics.wandb=offline", "--set", "metrics.wandb_project=digits", "--set",
            "metrics.wandb_group=nightly"]


def read_records(path):
    """The records of a .wandb file, as wandb/sdk/internal/datastore.py of older versions read them; a cut one ends the list."""
    data = path.read_bytes()
    assert data[:7] == b":W&B\xe1\xbe\x00", data[:7]
    at, parts, records = 7, b"", []
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            assert not any(data[at:at + left]), "padding of a block"
            at += left
            continue
        checksum, length, kind = int.from_bytes(data[at:at + 4], "little"), int.from_bytes(data[at + 4:at + 6], "little"), data[at + 6]
        body = data[at + 7:at + 7 + length]
        if len(body) < length:
            break
        assert zlib.crc32(data[at + 6:at + 7 + length]) == checksum, at
        assert 7 + length <= left, "a chunk crosses a block"
        parts = body if kind in (1, 2) else parts + body
        at += 7 + length
        if kind in (1, 4):
            record = protocol.Record()
            record.ParseFromString(parts)
            records.append(record)
    return records


def only_wandb(directory):
    files = list((directory / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == 1, files
    return files[0]


def send(server, folder):
    """Sends what is there of runs, by the program of Weights & Biases."""
    program = pathlib.Path(sys.executable).parent / "wandb"
    environment = os.environ | {"WANDB_API_KEY": 40 * "a", "WANDB_BASE_URL": server.url}
    sent = subprocess.run([program, "beta", "sync", "--yes", str(folder)], cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert sent.returncode == 0, sent.stdout + sent.stderr


def steps_of(records):
    return [record.history.step.num for record in records if record.WhichOneof("record_type") == "history"]


def check_sent(file):
    """All of a file arrives at a server."""
    with WandbServer() as server:
        send(server, file.parent)
        lines = server.history[file.stem.removeprefix("run-")]
        sent, written = [lines[number]["_step"] for number in sorted(lines)], steps_of(read_records(file))
        assert sent == written, (sent, written)


def check_resume(folder):
    """A resume is the same run there, and its steps come behind those of before."""
    runs = ["--ranks", 1, "--set", f"run.output={folder / 'resumed'}", "--set", "run.checkpoint.every=20"]
    expect_success(run("launch", *SETTINGS, *runs, "--set", "run.steps=20"))
    directory = only_run(folder / "resumed")
    with WandbServer() as server:
        send(server, directory / "wandb")
        text = expect_success(run("launch", *SETTINGS, *runs, "--resume", directory, "--set", "run.steps=30"))
        assert f"`wandb beta sync {directory / 'wandb'}`" in text, text
        send(server, directory / "wandb")
        parts = sorted((directory / "wandb").glob("offline-run-*/run-*.wandb"))
        assert len(parts) == 2 and parts[0].name == parts[1].name, parts
        assert list(server.history) == [parts[0].stem.removeprefix("run-")], list(server.history)
        (lines,) = server.history.values()
        steps = [lines[number]["_step"] for number in sorted(lines)]
        assert steps == [step for part in parts for step in steps_of(read_records(part))] and steps[-1] == 30, steps


with tempfile.TemporaryDirectory() as scratch:
    folder = pathlib.Path(scratch)
    gauges = folder / "dstrain.prom"
    text = expect_success(run("launch", *SETTINGS, "--ranks", 2, "--set", "run.steps=150", "--set", f"run.output={folder / 'runs'}", "--set",
                              f"metrics.prometheus={gauges}", "--set", "metrics.sample_s=0.1"))
    directory = only_run(folder / "runs")
    records = read_records(only_wandb(directory))
    kinds = [r.WhichOneof("record_type") for r in records]
    assert kinds[:2] == ["header", "run"] and kinds[-4:] == ["summary", "exit", "final", "footer"], kinds
    assert [r.num for r in records] == list(range(1, len(records) + 1))
    one = records[1].run
    assert (one.project, one.run_group, one.display_name) == ("digits", "nightly", directory.name), one
    config = {item.key: json.loads(item.value_json) for item in one.config.update}
    assert config["model"]["layers"] == 2 and config["metrics"]["wandb"] == "offline", config
    expected = metrics(directory)
    histories = [{item.key: json.loads(item.value_json) for item in r.history.item} for r in records if r.WhichOneof("record_type") == "history"]
    losses = {h["_step"]: h["train/loss"] for h in histories if "train/loss" in h}
    assert losses == {step: o["loss"] for step, o in expected.items()}, "every step is there, digit by digit"
    evaluation = [h for h in histories if "evaluation/accuracy" in h][-1]
    assert evaluation["evaluation/accuracy"] == list(metrics(directory, "evaluation").values())[-1]["accuracy"]
    stats = [{item.key: float(item.value_json) for item in r.stats.item} for r in records if r.WhichOneof("record_type") == "stats"]
    assert stats and all(s["proc.memory.rssMB"] > 100 for s in stats), stats  # two ranks with LibTorch
    summary = json.loads((only_wandb(directory).parent / "files" / "wandb-summary.json").read_text())
    assert summary["train/loss"] == expected[150]["loss"], summary
    check_sent(only_wandb(directory))
    values = dict(line.split("} ") for line in gauges.read_text().splitlines() if not line.startswith("#"))
    assert float(values[f'dstrain_train_loss{{run="{directory.name}"']) == expected[150]["loss"], values
    rows = (directory / "cpu.txt").read_text().splitlines()
    assert rows[0] == "# Elapsed time   CPU (%)     Real (MB)   Virtual (MB)" and len(rows) > 3, rows
    elapsed, cpu, real, virtual = (float(word) for word in rows[-1].split())
    assert 100 < real < virtual and cpu >= 0, rows[-1]  # two ranks with LibTorch
    assert "memory of the ranks of this host: peak" in text, text

    # A run that is killed leaves whole records up to then.
    killed = start("launch", *SETTINGS, "--ranks", 1, "--set", "run.steps=100000", "--set", f"run.output={folder / 'killed'}")
    until = time.monotonic() + 60
    while time.monotonic() < until and not (folder / "killed").exists():
        time.sleep(0.05)
    while time.monotonic() < until and not list((folder / "killed").glob("*/wandb/*/*.wandb")):
        time.sleep(0.05)
    directory = only_run(folder / "killed")
    file = only_wandb(directory)
    while time.monotonic() < until and file.stat().st_size < 40000:
        time.sleep(0.05)
    for pid in rank_processes(directory).values():
        with contextlib.suppress(ProcessLookupError):  # The loss of the first ends the others.
            os.kill(pid, signal.SIGKILL)
    killed.communicate(timeout=60)
    steps = [r for r in read_records(file) if r.WhichOneof("record_type") == "history"]
    assert len(steps) > 20, len(steps)
    cut = folder / "cut.wandb"
    cut.write_bytes(file.read_bytes()[:-3])
    assert len(read_records(cut)) == len(read_records(file)) - 1
    check_sent(file)
    check_resume(folder)
print("what a run writes for others is what they read")
