"""dstrain bench parallel: a run for each layout, number of ranks and batch beside its plan; profiles; the order of plan --auto."""
import csv
import json
import os
import pathlib
import tempfile
import time

from support import expect_success, metrics, run, start

RECIPE = """# data.yaml - a small Qwen2 on random tokens
model:     { name: qwen2, width: 32, layers: 4, heads: 4, kv_heads: 2, mlp_width: 64, vocab_size: 256 }
data:      { name: random, samples: 960, sequence: 16 }
batch:     { global: 16, micro: 2 }
optimizer: { name: adamw, lr: 1.0e-3 }
precision: { compute: fp32 }
parallel:  { backend: gloo, zero: { stage: 2 } }
run:       { epochs: 0, steps: 1000, evaluate: 100, checkpoint: { every: 10 } }
"""
STEPS, WARMUP, TRACED, LONE = 5, 2, 3, 5


def rows_of(folder):
    """{(recipe, ranks, samples, auto row): row} of parallel.json, with its CSV row under "csv"."""
    rows = json.loads((folder / "parallel.json").read_text())["rows"]
    with open(folder / "parallel.csv") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == len(rows)
    for row, line in zip(rows, lines):
        row["csv"] = line
    return {(r["recipe"], r["ranks"], r["samples"], r["auto_row"]): r for r in rows}


with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    data, pipe, folder, profile = scratch / "data.yaml", scratch / "pipe.yaml", scratch / "out", scratch / "profiler_logs" / "pipe_trace"
    data.write_text(RECIPE)
    pipe.write_text(RECIPE.replace("zero: { stage: 2 }", "zero: { stage: 1 }, pipeline: 2, stages: { schedule: zero_bubble }")
                    + f"trace:     {{ output: {profile}, compress: none }}\n")
    # 128 tokens a step are 8 samples; weak scaling has 4 for a rank, so that both meet on two ranks.
    arguments = ["bench", "parallel", data, pipe, "--ranks", "1,2", "--tokens", 128, "--steps", STEPS, "--warmup", WARMUP, "-o", folder]

    for extra, words in ((["--ranks", "2,2"], "--ranks names one of its values twice"), (["--ranks", "0"], "--ranks"), ([], "--ranks is required"),
                         (["--ranks", 2, "--scaling", "fast"], "--scaling"), (["--ranks", 2, "--tokens", 100], "no multiple of data.sequence 16"),
                         (["--ranks", 2, "--scaling", "strong", "--tokens-per-rank", 64], "for weak scaling"),
                         (["--ranks", 2, "--scaling", "weak", "--tokens", 64], "for strong scaling"), (["--ranks", 2, "--auto", 0], "--auto"),
                         (["--ranks", 2, "--set", "batch.global=8"], "the bench sets batch.global"), (["--ranks", 2, "--set", "run.steps=8"], "--steps says"),
                         (["--ranks", 2, "--auto", 1, "--set", "parallel.tensor=2"], "--auto chooses it")):
        result = run("bench", "parallel", data, *extra, "-o", scratch / "none")
        assert result.returncode == 64 and words in result.stderr, (extra, result.stderr)
    image = run("bench", "parallel", "recipes/quickstart.yaml", "--ranks", 1, "--tokens", 64, "-o", scratch / "none")
    assert image.returncode == 64 and "trains on images" in image.stderr, image.stderr
    assert not (scratch / "none").exists()

    text = expect_success(run(*arguments))
    rows = rows_of(folder)
    assert set(rows) == {(recipe, *batch, None) for recipe in ("data", "pipe") for batch in ((1, 4), (1, 8), (2, 8))}, rows.keys()
    for ranks, samples in ((1, 4), (1, 8)):
        row = rows["pipe", ranks, samples, None]
        assert row["runs"] == 0 and row["step_s"] is None and "pipeline" in row["reason"], row
    for key, row in rows.items():
        if key[:2] == ("pipe", 1):
            continue
        directory = folder / "runs" / f"{key[0]}-batch{key[2]}-{key[1]}-ranks-1"
        plan = json.loads((directory / "plan.json").read_text())
        steps = metrics(directory)
        assert len(steps) == WARMUP + STEPS + 1 + TRACED + 1 + LONE and plan["batch"]["global"] == key[2], directory
        counted = sorted(steps[step]["step_s"] for step in range(WARMUP + 1, WARMUP + STEPS + 1))
        assert counted[0] <= row["step_s"] <= counted[-1] and row["planned_step_s"] == plan["step_s"], row
        assert row["runs"] == 1 and row["reason"] == "" and row["mfu"] is None and row["device"] == "CPU", row
        assert abs(row["rate_per_rank"] * key[1] * row["step_s"] / (key[2] * 16) - 1) < 0.5, row
        assert row["forward_s"] > 0 and row["backward_s"] > 0 and row["optimizer_s"] >= 0, row
        assert row["planned_bytes"] == plan["memory"]["allocated_bytes"] and row["peak_bytes"] is None
        assert abs(float(row["csv"]["step_s"]) / row["step_s"] - 1) < 1e-9 and row["csv"]["mfu"] == "" and row["csv"]["recipe"] == key[0]
        for one in row["collectives"]:
            assert one["bytes"] == one["planned_bytes"], (key, one)
    both, one = rows["data", 2, 8, None], rows["data", 1, 4, None]
    assert both["weak"] and both["strong"] and one["weak"] and not one["strong"] and one["weak_efficiency"] == 1
    assert abs(both["weak_efficiency"] - both["rate_per_rank"] / one["rate_per_rank"]) < 1e-9 and both["layout"].startswith("shard 2"), both
    assert both["bubble"] is None and both["weight_s"] == 0 and len(both["stages"]) == 1

    # Without gathers and reductions at the end of each run: on CPUs no kernel runs beside them.
    for key, row in rows.items():
        if row["runs"] == 0 or key[0] == "pipe" or key[1] == 1:
            assert row["exchange_s"] is None and row["contention_s"] is None, row
            continue
        directory = folder / "runs" / f"{key[0]}-batch{key[2]}-{key[1]}-ranks-1"
        alone = sorted(metrics(directory)[step]["step_s"] for step in range(WARMUP + STEPS + TRACED + 3, WARMUP + STEPS + TRACED + 3 + LONE))
        assert abs(row["step_s"] - row["exchange_s"] - alone[LONE // 2]) < 1e-9, (row, alone)
        plan = json.loads((directory / "plan.json").read_text())
        assert 0 <= row["planned_exchange_s"] == plan["step_s"] - plan["step_without_exchanges_s"], row
        assert abs(row["contention_s"] - (row["exchange_s"] - row["exposed_gather_s"] - row["exposed_reduce_s"])) < 1e-9, row
        timed = [json.loads(line) for line in (directory / "ranks" / "rank0000.jsonl").read_text().splitlines()]
        waits = {t["step"]: t["wait_s"]["gather"] + t["wait_s"]["reduce"] for t in timed}
        # One rank waits for the other where other work takes their cores, so that a single step says little.
        lone = min(waits[step] for step in range(WARMUP + STEPS + TRACED + 3, WARMUP + STEPS + TRACED + 3 + LONE))
        assert lone < 0.5 * max(waits[step] for step in range(WARMUP + 1, WARMUP + STEPS + 1)), waits
        said = (folder / "runs" / f"{directory.name}.log").read_text()
        assert f"from step {WARMUP + STEPS + TRACED + 2} on ranks exchange no parameters and no gradients" in said, said
    for step, words in (("soon", "'soon' is no step"), ("1", "this run would write checkpoints")):
        wrong = run("launch", data, "--ranks", 1, "--set", "run.steps=1", "--set", f"run.output={scratch / 'none'}",
                    env=os.environ | {"DSTRAIN_SKIP_EXCHANGES": step})
        assert wrong.returncode == 64 and words in wrong.stdout + wrong.stderr, wrong

    stage = rows["pipe", 2, 8, None]
    plan = json.loads((folder / "runs" / "pipe-batch8-2-ranks-1" / "plan.json").read_text())
    planned = [s["bubble_s"] / plan["step_s"] for s in plan["pipeline"]["stages"]]
    assert abs(stage["planned_bubble"] - sum(planned) / 2) < 1e-9 and 0 < stage["bubble"] < 1 and stage["weight_s"] > 0, stage
    assert [s["planned_bytes"] for s in stage["stages"]] == [s["allocated_bytes"] for s in plan["pipeline"]["stages"]]
    for rank, one in enumerate(stage["stages"]):
        lines = (folder / "runs" / "pipe-batch8-2-ranks-1" / "ranks" / f"rank{rank:04}.jsonl").read_text().splitlines()
        timed = [t for t in map(json.loads, lines) if WARMUP < t["step"] <= WARMUP + STEPS]
        waited = sum(t["exposed_comm_s"] - t["wait_s"]["gather"] - t["wait_s"]["reduce"] for t in timed)
        assert len(timed) == STEPS and abs(one["bubble"] - waited / sum(t["step_s"] for t in timed)) < 1e-6, (rank, one)
    assert {(c["operation"], c["purpose"]) for c in stage["collectives"]} >= {("send", "activations between stages"), ("receive", "activations between stages")}
    markdown = (folder / "parallel.md").read_text()
    for words in ("Speed", "Parts of a step", "Stages", "Collectives of a step", "Weak scaling", "Strong scaling", "Not run", "Counted bytes are the planned in"):
        assert words in markdown and words in text, words

    # The profile of the recipe that names a folder: plain files of three steps on all ranks.
    for rank in range(2):
        trace = json.loads((profile / f"rank{rank}_trace.json").read_text())
        assert trace["dstrain"]["steps"] == [WARMUP + STEPS + 2, WARMUP + STEPS + 1 + TRACED] and trace["dstrain"]["warmup"] == 1, trace["dstrain"]
        assert trace["distributedInfo"]["world_size"] == 2 and (profile / f"rank{rank}_actions.json").exists()
    analysis = json.loads(expect_success(run("trace", "analyze", profile, "--json")))
    kinds = {(k["lane"], k["kind"]): k for k in analysis["ranks"][0]["actions"]}
    assert kinds["compute", "backward_weight"]["count"] % TRACED == 0 and kinds["compute", "forward"]["ns"] > 0, kinds
    spent = {kind: sum(k["ns"] for rank in analysis["ranks"] for k in rank["actions"] if k["lane"] == "compute" and k["kind"] in kinds) / TRACED / 2 * 1e-9
             for kind, kinds in (("forward_s", ("forward",)), ("weight_s", ("backward_weight",)), ("optimizer_s", ("norm", "update")))}
    assert all(abs(stage[part] / spent[part] - 1) < 1e-6 for part in ("forward_s", "weight_s")) and stage["optimizer_s"] < spent["optimizer_s"], (stage, spent)

    # Ended by a signal: what has ended is in tables, and stays.
    stopped = scratch / "stopped"
    process = start("bench", "parallel", data, "--ranks", "1,2", "--tokens", 128, "--steps", STEPS, "--warmup", WARMUP, "--auto", 1, "-o", stopped)
    until = time.monotonic() + 60
    while time.monotonic() < until and not ((stopped / "bench.jsonl").exists() and (stopped / "bench.jsonl").read_text()):
        time.sleep(0.01)
    process.terminate()
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 75 and "stopped before all runs have ended" in said, (process.returncode, said)
    runs = [row["runs"] for row in rows_of(stopped).values()]
    assert 1 in runs and 0 in runs and "not run" in (stopped / "parallel.md").read_text(), (runs, said)

    # All runs are there: nothing is started. The search's rows are added to them.
    log = folder / "bench.jsonl"
    before = log.read_text()
    expect_success(run(*arguments))
    assert log.read_text() == before
    again = [a if a != "1,2" else 2 for a in arguments]
    said = expect_success(run(*again, "--auto", 2, "--scaling", "strong"))
    assert all(key[0] == "data" for key in rows_of(folder) if key[3]), "the recipes differ in their layout alone: one search"
    searched = {key[3]: row for key, row in rows_of(folder).items() if key[3]}
    assert set(searched) >= {1, 2} and log.read_text().startswith(before), searched.keys()
    for number, row in searched.items():
        assert row["runs"] == 1 and row["settings"] and abs(row["planned_step_s"] / row["auto_step_s"] - 1) < 0.01, row
    # Within 1 % of the shortest the layout of fewer axes comes first.
    first, second = ([s for s in searched[row]["settings"] if s.split("=")[0] in ("parallel.pipeline", "parallel.tensor", "parallel.sequence") and s[-2:] != "=1"]
                     for row in (1, 2))
    times = [searched[row]["auto_step_s"] for row in (1, 2)]
    assert times[0] <= times[1] or (times[0] <= 1.01 * times[1] and len(first) < len(second)), searched
    assert "Order of plan --auto" in said and "2 ranks: the measured order" in said, said
    order = next(table for table in json.loads((folder / "parallel.json").read_text())["tables"] if table["name"] == "7-auto")
    assert {(line[0], line[2].split()[0]) for line in order["rows"]} >= {("data", "1"), ("data", "recipe"), ("pipe", "recipe")}, order
    assert [line[6] for line in order["rows"]] == sorted(line[6] for line in order["rows"]), order
    assert any("pipeline 2" in row["layout"] for row in searched.values()), "the default layout is a row"
print("bench parallel: runs, parts, stages, collectives, scaling, profiles and the order of the search")
