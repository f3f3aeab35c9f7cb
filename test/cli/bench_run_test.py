"""dstrain bench run: figures are those of the runs' own files, failures are rows, an end in the middle is gone on with."""
import csv
import json
import pathlib
import signal
import statistics
import tempfile
import time

from support import ROOT, expect_success, metrics, run, start

SETTINGS = ["recipes/quickstart.yaml", "--variants", "ddp,zero2", "--variant", "broken=model.heads=3", "--ranks", "1,2", "--scaling", "weak",
            "--repeat", "2", "--steps", "20", "--warmup", "5", "--set", "model.layers=1", "--set", "metrics.sample_s=0.1"]

for arguments, words in ((["--variants", "zero7"], "known are recipe, ddp"), (["--variant", "a=b"], "KEY=VALUE"),
                         (["--ranks", "2,2"], "names one of its values twice")):
    result = run("bench", "run", "recipes/quickstart.yaml", *arguments, "-o", "/nowhere/bench")
    assert result.returncode == 64 and words in result.stderr, (arguments, result.stderr)

with tempfile.TemporaryDirectory() as scratch:
    folder = pathlib.Path(scratch) / "bench"
    records = folder / "bench.jsonl"

    # Ctrl-C when two runs have ended: the third one is ended and not counted.
    process = start("bench", "run", *SETTINGS, "-o", folder)
    until = time.monotonic() + 60
    while time.monotonic() < until and not (records.exists() and len(records.read_text().splitlines()) >= 2):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    text = process.communicate(timeout=60)[0]
    assert process.returncode == 75 and "--resume goes on" in text, (process.returncode, text)
    before = records.read_text()
    assert 2 <= len(before.splitlines()) < 8 and (folder / "tables.md").exists(), before

    result = run("bench", "run", *SETTINGS, "-o", folder)
    assert result.returncode == 64 and "holds a bench" in result.stderr, result.stderr
    result = run("bench", "run", *SETTINGS, "-o", folder, "--resume")
    text = expect_success(result)
    assert records.read_text().startswith(before), "what had ended stays"
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    assert len({line["run"] for line in lines}) == len(lines) == 8, lines
    order = [line["run"].removeprefix("quickstart-").rsplit("-ranks-") for line in lines]
    assert order[:4] == [["ddp-1", "1"], ["zero2-1", "1"], ["zero2-1", "2"], ["ddp-1", "2"]], order
    assert "quickstart-broken-1-ranks-1: left out: model.heads: 3 does not divide" in result.stderr, result.stderr

    results = {(r["recipe"], r["variant"], r["ranks"]): r for r in json.loads((folder / "results.json").read_text())["results"]}
    assert len(results) == 6, results.keys()
    for (recipe, variant, ranks), r in results.items():
        if variant == "broken":
            assert r["runs"] == 0 and "model.heads" in r["failure"] and r["samples_per_s"] is None, r
            continue
        rates, losses = [], []
        for repeat in (1, 2):
            directory = folder / "runs" / f"{recipe}-{variant}-{ranks}-ranks-{repeat}"
            steps = metrics(directory)
            assert len(steps) == 25 and json.loads((directory / "plan.json").read_text())["batch"]["global"] == 64 * ranks
            # Neither warm-up, nor the step with the evaluation, nor the ones beside it.
            rates.append((directory, [steps[i]["samples_per_s"] for i in range(6, 25)]))
            losses.append(statistics.mean(steps[i]["loss"] for i in range(24, 26)))
        low, high = (statistics.median(f([min(x), max(x)]) for _, x in rates) for f in (lambda p: p[0], lambda p: p[1]))
        assert low <= r["samples_per_s"] <= high, (r["samples_per_s"], rates)
        assert abs(r["loss"] - statistics.median(losses)) < 1e-9, (r["loss"], losses)
        evaluation = list(metrics(directory, "evaluation").values())
        assert len(r["evaluation_losses"]) == len(evaluation) == 1 and evaluation[0]["samples"] == 360, evaluation
        real = [float(line.split()[2]) for line in (directory / "cpu.txt").read_text().splitlines()[1:]]
        assert 100 < r["cpu_mib"]["peak"] and r["cpu_mib"]["min"] <= max(real), (r["cpu_mib"], real)
        assert r["steps_per_epoch"] in (23, 12) and r["seconds"] > 0.3, r
    first, second = results["quickstart", "zero2", 1], results["quickstart", "zero2", 2]
    assert first["efficiency"] == 1 and abs(second["efficiency"] - second["samples_per_s"] / first["samples_per_s"] / 2) < 1e-12
    with open(folder / "table-5-scaling.csv") as file:
        rows = list(csv.DictReader(file))
    assert [(row["configuration"], row["ranks"]) for row in rows[:4]] == [("ddp", "1"), ("ddp", "2"), ("zero2", "1"), ("zero2", "2")], rows
    assert abs(float(rows[3]["samples/s"]) - second["samples_per_s"]) < 1e-6 * second["samples_per_s"], rows[3]
    tables = (folder / "tables.md").read_text()
    for words in ("## Weak scaling", "## Failures", "quickstart, broken, 2 ranks: model.heads: 3 does not divide", "Left out"):
        assert words in tables and words.removeprefix("## ") in text, words
    # All runs are there: nothing is started, the same is printed.
    again = json.loads(run("bench", "run", *SETTINGS, "-o", folder, "--resume", "--json").stdout)
    assert again["results"] == json.loads((folder / "results.json").read_text())["results"]
    # Another variant is added to those that have ended.
    ended = records.read_text()
    expect_success(run("bench", "run", *SETTINGS[:2], "ddp,zero1", *SETTINGS[5:], "-o", folder, "--resume"))
    lines = [json.loads(line)["run"] for line in records.read_text().removeprefix(ended).splitlines()]
    assert len(lines) == 4 and all("-zero1-" in line for line in lines), lines

    # Nothing ended well.
    result = run("bench", "run", "recipes/quickstart.yaml", "--variant", "broken=model.heads=3", "--repeat", 1, "-o", folder.parent / "none")
    assert result.returncode == 1 and "Failures" in result.stdout, result.stdout
print("a bench's tables are its runs' figures")
