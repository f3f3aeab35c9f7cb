"""Pages of measurements are what their rows say; scripts/benchmark --record puts rows in front of those of their case."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
sys.path.insert(0, str(ROOT / "scripts"))
import figure_rows  # noqa: E402


def script(tree, *command, **variables):
    return subprocess.run([sys.executable, *map(str, command)], cwd=tree, capture_output=True, text=True, env=os.environ | variables)


def copied(folder):
    """A tree with the scripts, the rows and their pages, and one recipe."""
    tree = pathlib.Path(folder)
    for name in ("scripts", "recipes/benchmarks", "engine/kernels/benchmarks"):
        shutil.copytree(ROOT / name, tree / name)
    for name in ("recipes/BENCHMARKS.md", "engine/kernels/BENCHMARKS.md", "recipes/vit/vit-base_random.yaml"):
        (tree / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tree / name)
    return tree


done = script(ROOT, "scripts/figures.py", "--check")
assert done.returncode == 0, done.stdout + done.stderr  # says which command renews the pages

with tempfile.TemporaryDirectory() as folder:
    tree = copied(folder)
    assert script(tree, "scripts/figures.py", "--check").returncode == 0
    rows = tree / "recipes/benchmarks/transformers.tsv"
    text = rows.read_text()
    # The newest row of the first case beside its peer, whatever its figures are.
    lines = text.splitlines(keepends=True)
    columns = lines[0].rstrip("\n").split("\t")
    number, line = next((n, one) for n, one in enumerate(lines) if one.startswith("Qwen2.5-3B, 4 x 4096, fp32 master\t"))
    row = dict(zip(columns, line.rstrip("\n").split("\t")))
    peer = row["peer_ms"]
    ten_times = line.replace(f"\t{peer}\t", f"\t{float(row['step_ms']) * 10:.0f}\t")
    assert peer and ten_times != line
    rows.write_text("".join([*lines[:number], ten_times, *lines[number + 1:]]))
    done = script(tree, "scripts/figures.py", "--check")
    assert done.returncode == 1 and "recipes/BENCHMARKS.md" in done.stdout and "scripts/figures.py renews" in done.stdout, done
    assert script(tree, "scripts/figures.py").returncode == 0
    shown = figure_rows.shown(f"{float(row['step_ms']) * 10:.0f}")
    assert f"| {row['step_ms']} | {shown} | {row['peer_gib']} | 10.00\n" in (tree / "recipes/BENCHMARKS.md").read_text()
    rows.write_text("".join([*lines[:number], line.replace(f"\t{peer}\t", "\t"), *lines[number + 1:]]))
    done = script(tree, "scripts/figures.py", "--check")
    assert done.returncode != 0 and f"transformers.tsv:{number + 1}: 18 cells where the first line names 19 columns" in done.stderr, done.stderr
    rows.write_text("\n".join(line for line in text.splitlines() if not line.startswith("ViT-B/16, 128 images, bf16 states\t")) + "\n")
    done = script(tree, "scripts/figures.py")
    assert done.returncode != 0 and "no row of ViT-B/16, 128 images, bf16 states" in done.stderr, done.stderr

# Means of runs, thousands, ratios.
assert figure_rows.mean("119.0, 119.5") == 119.25 and figure_rows.mean("26.6k, 26.4k tok/s") == 26500 and figure_rows.mean("") is None
assert figure_rows.shown("27677 tok/s") == "27,677 tok/s" and figure_rows.shown("1234.5, 0.1234") == "1234.5, 0.1234"
assert figure_rows.ratio(dict(step_ms="2.0, 4.0", peer_ms="6", rate="1", peer_rate="1")) == "2.00"
assert figure_rows.ratio(dict(step_ms="", peer_ms="6", rate="3k tok/s", peer_rate="2k tok/s")) == "1.50"

with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "rows.tsv"

    def written(*rows):
        figure_rows.write(path, ["case", "hardware", "peer", "step_ms"], [dict(zip(("case", "hardware", "peer", "step_ms"), row)) for row in rows])

    def recorded(row):
        figure_rows.record(path, row)
        return [tuple(r.values()) for r in figure_rows.read(path)[1]]

    other = ("a", "H100", "", "9")
    written(("b", "H200", "", "1"), ("a", "H200", "", "2"), ("a", "H200", "torch", "3"), other)
    assert recorded(dict(case="a", hardware="H200", step_ms=4)) == [("b", "H200", "", "1"), ("a", "H200", "", "4"), ("a", "H200", "torch", "3"), other]
    assert recorded(dict(case="a", hardware="H200", peer="torch", step_ms=5)) == [("b", "H200", "", "1"), ("a", "H200", "torch", "5"), other]
    assert recorded(dict(case="c", hardware="H200", step_ms="two\twords"))[-1] == ("c", "H200", "", "two words")
    try:
        recorded(dict(case="c", speed=1))
        raise AssertionError("a column that the file lacks was taken")
    except ValueError as error:
        assert "has no column speed" in str(error)

# A dstrain that writes what scripts/benchmark reads, and its peer.
FAKE = """#!{python}
import json, os, pathlib, sys
settings = dict(word.split("=", 1) for word in sys.argv if "=" in word)
if "fails" in settings: sys.exit("no such key")
run = pathlib.Path(settings["run.output"]) / "run"
run.mkdir()
steps = [dict(kind="step", step_s=s, tokens_per_s=0, samples_per_s=1, mfu=0.5, memory_bytes=2 << 30) for s in (9, 9, 0.0320, 0.0320)]
(run / "metrics.jsonl").write_text("".join(json.dumps(o) + "\\n" for o in steps))
(run / "plan.json").write_text(json.dumps(dict(step_s=0.031, memory=dict(allocated_bytes=3 << 29))))
print("first step 2.0 s after start")
"""
with tempfile.TemporaryDirectory() as folder:
    tree = copied(folder)
    (tree / "dstrain").write_text(FAKE.format(python=sys.executable))
    (tree / "dstrain").chmod(0o755)
    (tree / "nvidia-smi").write_text("#!/bin/sh\necho NVIDIA H200\n")
    (tree / "nvidia-smi").chmod(0o755)
    (tree / "torch_baseline.py").write_text(f"print({json.dumps(json.dumps(dict(samples_s_gpu=2000.4, step_ms=64, peak_gib=10.4, warm_s=31)))})\n")
    command = ["scripts/benchmark", "--dstrain", tree / "dstrain", "--recipes", "vit/vit-base_random_zero2.yaml"]
    paths = dict(PATH=f"{tree}:{os.environ['PATH']}")
    before = (tree / "recipes/benchmarks/data_parallel.tsv").read_text()
    done = script(tree, *command, "--ranks", "4", **paths)
    assert done.returncode == 0, done.stderr
    row = dict(zip(*(line.split("\t") for line in done.stdout.splitlines())))
    assert row | dict(date="", commit="") == dict.fromkeys(figure_rows.STEP_COLUMNS, "") | dict(
        case="ViT-B, 128 images, ZeRO-2", ranks="4", hardware="H200", rate="4000 img/s", step_ms="32.00", mfu="50.0 %", memory_gib="2.00",
        planned_ms="31.00", planned_gib="1.50", note="first step 2.0 s",
        command="dstrain launch recipes/vit/vit-base_random_zero2.yaml --ranks 4 --set batch.global=512"), row
    assert (tree / "recipes/benchmarks/data_parallel.tsv").read_text() == before
    done = script(tree, *command, "--ranks", "8", "--record", **paths)
    assert done.returncode == 0, done.stderr
    assert (tree / "recipes/benchmarks/data_parallel.tsv").read_text() == before + done.stdout.splitlines()[1] + "\n"
    done = script(tree, "scripts/benchmark", "--set", "fails=1", *command[1:], "--ranks", "4", "--record", **paths)
    assert done.returncode == 1 and "ViT-B, 128 images, ZeRO-2 on 4 failed" in done.stderr and len(done.stdout.splitlines()) == 1, done

    # Beside a peer: torchrun is left out with one rank.
    command[-1] = "vit/vit-base_random_ddp.yaml"
    done = script(tree, *command, "--ranks", "1", "--peers", tree, "--peer-eager-only", **paths)
    assert done.returncode == 0, done.stderr
    row = dict(zip(*(line.split("\t") for line in done.stdout.splitlines())))
    assert (row["peer"], row["peer_rate"], row["peer_ms"], row["peer_gib"], figure_rows.ratio(row)) == ("PyTorch", "2000 img/s", "64", "10.4", "2.00"), row
    assert row["note"] == "first step 2.0 s; peer's first steps 31 s"
print("figures: ok")
