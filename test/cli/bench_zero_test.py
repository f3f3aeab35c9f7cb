"""dstrain bench zero: a cell for each stage, offload and kind of memory; those that have ended are kept, those that cannot run say why."""
import csv
import json
import pathlib
import tempfile
import time

from support import expect_success, metrics, processes_naming, run, start

RECIPE = """# tiny.yaml - a small BLOOM on random tokens
model:     { name: bloom, width: 32, layers: 2, heads: 2, vocab_size: 256 }
data:      { name: random, samples: 96, sequence: 16 }
batch:     { global: 8, micro: 4 }
optimizer: { name: adamw, lr: 1.0e-3 }
precision: { compute: fp32 }
parallel:  { backend: gloo }
run:       { epochs: 1, evaluate: epoch, checkpoint: { every: never } }
"""
# Its data are not there: planned, and ended by the run itself.
MISSING = RECIPE.replace("name: random, samples: 96", 'name: jsonl, path: "/nowhere.jsonl", prompt: "{a}", response: "{b}", tokenizer: "/nowhere"')


def cells_of(folder):
    """{(recipe, ranks, stage, offload, pinned, scaling): row} of zero.csv."""
    with open(folder / "zero.csv") as file:
        rows = list(csv.DictReader(file))
    cells = {(r["recipe"], int(r["ranks"]), int(r["stage"]), r["offload"], r["pinned"], r["scaling"]): r for r in rows}
    assert len(cells) == len(rows), rows
    return cells


with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    recipe, missing, folder = scratch / "tiny.yaml", scratch / "missing.yaml", scratch / "zero"
    recipe.write_text(RECIPE)
    missing.write_text(MISSING)
    all_cells = ["bench", "zero", recipe, "--ranks", 2, "--offload", "none,optimizer", "--pinned", "both", "-o", folder]
    lines = folder / "bench.jsonl"

    for arguments, words in (([], "neither --ranks nor --scaling"), (["--ranks", 2, "--offload", "states"], "use none, optimizer or"),
                             (["--ranks", 2, "--stages", "2,4"], "--stages"), (["--ranks", 2, "--stages", "2,2"], "twice"),
                             (["--ranks", 2, "--pinned", "maybe"], "--pinned"), (["--ranks", 2, "--samples-per-rank", 5], "weak scaling"),
                             (["--ranks", 2, "--stages", "1,2", "--offload", "optimizer+parameters"], "stage 3 or on one")):
        result = run("bench", "zero", recipe, *arguments, "-o", scratch / "none")
        assert result.returncode == 64 and words in result.stderr, (arguments, result.stderr)
    assert not (scratch / "none").exists()

    # Killed when two cells have ended: the third one ends with it and is made again.
    process = start(*all_cells)
    until = time.monotonic() + 60
    while time.monotonic() < until and not (lines.exists() and len(lines.read_text().splitlines()) >= 2):
        time.sleep(0.01)
    process.kill()
    process.communicate(timeout=60)
    until = time.monotonic() + 30
    while time.monotonic() < until and processes_naming(str(folder)):
        time.sleep(0.05)
    assert not processes_naming(str(folder))
    before = lines.read_text()
    assert 2 <= len(before.splitlines()) < 12 and not (folder / "zero.md").exists(), before
    text = expect_success(run(*all_cells))
    assert lines.read_text().startswith(before), "what had ended stays"
    names = [json.loads(line)["run"] for line in lines.read_text().splitlines()]
    assert len(set(names)) == len(names) == 12, names

    cells = cells_of(folder)
    assert set(cells) == {("tiny", 2, stage, offload, pinned, "") for stage in range(4)
                          for offload, pinned in (("none", ""), ("optimizer", "true"), ("optimizer", "false"))}, cells.keys()
    objects = json.loads((folder / "zero.json").read_text())
    assert len(objects["cells"]) == 12 and [t["name"] for t in objects["tables"]] == ["1-stages-1", "2-offload", "3-pinned"], objects
    for cell in objects["cells"]:
        place = {None: "", True: "+pinned", False: "+pageable"}[cell["pinned"]]
        offload = "" if cell["offload"] == "none" else f"+{cell['offload']}"
        directory = folder / "runs" / f"tiny-zero{cell['stage']}{offload}{place}-2-ranks-1"
        plan = json.loads((directory / "plan.json").read_text())
        row = cells["tiny", 2, cell["stage"], cell["offload"], place and str(cell["pinned"]).lower(), ""]
        steps = metrics(directory)
        assert len(steps) == 12 and plan["zero_stage"] == cell["stage"], directory
        assert abs(float(row["train_runtime_s"]) - sum(step["step_s"] for step in steps.values())) < 1e-6, row
        assert float(row["total_runtime_s"]) > float(row["train_runtime_s"])
        assert abs(float(row["gpu_planned_mib"]) * 2**20 - plan["memory"]["total_bytes"]) < 1e3, row
        assert abs(float(row["planned_step_s"]) - plan["step_s"]) < 1e-9
        assert float(row["eval_loss"]) > 0 and float(row["eval_samples_per_s"]) > 0 and float(row["cpu_peak_mib"]) >= float(row["cpu_mean_mib"]) > 50, row
        offloaded = 2 * (plan["memory"]["host_pinned_bytes"] + plan["memory"]["host_pageable_bytes"])
        assert abs(float(row["host_planned_mib"]) * 2**20 - offloaded) < 1 and (offloaded > 0) == (cell["offload"] != "none"), row
        plain = cells["tiny", 2, cell["stage"], "none", "", ""]
        assert row["train_loss"] == plain["train_loss"] and row["eval_loss"] == plain["eval_loss"], "offload changes nothing"
        assert row["gpu_peak_mib"] == "" and row["reason"] == ""
    with open(folder / "zero_memory.csv") as file:
        series = list(csv.DictReader(file))
    assert {row["run"] for row in series} == set(names), series[0]
    peak = max(float(row["real_mib"]) for row in series if row["run"] == "tiny-zero0-2-ranks-1")
    assert abs(peak - float(cells["tiny", 2, 0, "none", "", ""]["cpu_peak_mib"])) < 0.01
    markdown = (folder / "zero.md").read_text()
    for words in ("tiny on 2 ranks: stages without and with offload", "What offload saves and costs", "Pinned memory", "Fastest: stage", "pinned takes",
                  "Left out", "Weak scaling: --scaling names no numbers"):
        assert words in markdown and words in text, words

    # All cells are there: nothing is started. Further ones are added: one rank, parameters, weak scaling.
    ended = lines.read_text()
    expect_success(run(*all_cells))
    assert lines.read_text() == ended and cells_of(folder) == cells
    text = expect_success(run("bench", "zero", recipe, "--ranks", "1,2", "--stages", "2,3", "--offload", "none,optimizer+parameters",
                              "--scaling", "1,2", "--samples-per-rank", 40, "-o", folder))
    more = cells_of(folder)
    assert {key for key in more if "+" in key[3]} == {("tiny", ranks, stage, "optimizer+parameters", "true", "")
                                                      for ranks, stage in ((1, 2), (2, 3))}, more.keys()
    assert more["tiny", 2, 3, "none", "", ""] == cells["tiny", 2, 3, "none", "", ""]
    assert lines.read_text().startswith(ended) and len(lines.read_text().splitlines()) == 17
    for ranks in (1, 2):
        directory = folder / "runs" / f"tiny-zero2-weak-{ranks}-ranks-1"
        assert json.loads((directory / "plan.json").read_text())["batch"]["global"] == 8 * ranks and len(metrics(directory)) == 5
    weak = more["tiny", 2, 2, "none", "", "weak"]
    assert float(more["tiny", 1, 2, "none", "", "weak"]["efficiency"]) == 1 and float(weak["efficiency"]) > 0
    assert "With one rank nothing is divided: all stages are the same" in text and "2 ranks keep" in text, text

    # A recipe that has changed is trained again.
    recipe.write_text(RECIPE.replace("1.0e-3", "2.0e-3"))
    expect_success(run("bench", "zero", recipe, "--ranks", 2, "--stages", 3, "--offload", "none", "-o", folder))
    assert len(lines.read_text().splitlines()) == 18
    assert cells_of(folder)["tiny", 2, 3, "none", "", ""]["train_loss"] != cells["tiny", 2, 3, "none", "", ""]["train_loss"]

    # Cells that cannot run: too few GPUs, too little memory, an error of the run, which is tried again when asked.
    for setting, words in (("parallel.backend=nccl", "needs 2 GPUs, this machine has 0"), ("memory.limit=0.001", "does not fit the 0.00107 GB of cpu")):
        result = run("bench", "zero", recipe, "--ranks", 2, "--stages", 3, "--set", setting, "-o", scratch / "small")
        assert result.returncode == 1 and words in result.stdout and "0 of 2 cells ran" in result.stdout, (setting, result.stdout, result.stderr)
        small = cells_of(scratch / "small")["tiny", 2, 3, "none", "", ""]
        assert words in small["reason"] and float(small["gpu_planned_mib"]) > 0, small
        assert words in (scratch / "small" / "zero.md").read_text()
    again = ["bench", "zero", missing, "--ranks", 1, "--stages", 0, "--offload", "none", "-o", scratch / "missing"]
    for extra, expected in (([], 1), ([], 1), (["--retry"], 2)):
        result = run(*again, *extra)
        assert result.returncode == 1 and "what is not there: data.path" in cells_of(scratch / "missing")["missing", 1, 0, "none", "", ""]["reason"], result.stdout
        assert len((scratch / "missing" / "bench.jsonl").read_text().splitlines()) == expected
print("bench zero: cells, their tables and their reasons")
