"""Mixtures: shares, epochs told, evaluation by member, the same losses on 1, 2 and 3 ranks, resumed runs that are the straight one, refusals."""
import json
import os
import pathlib
import tempfile

from support import copy_until, expect_success, losses, metrics, only_run, run
from text_files import write_metamathqa, write_tokenizer  # leaves with 77 without tokenizers

STEPS, HALF = 12, 6
RECIPE = """
model:     {{ name: bloom-560m, layers: 1, width: 32, heads: 2, vocab_size: 512 }}
data:
  sequence: 160
  packing: true
  tokenizer: "{folder}/tokenizer"
  cache: "{folder}/cache"
  mixture:
    - {{ name: jsonl, path: "{folder}/small.jsonl", prompt: "Q{{q}}", response: " A{{a}}", weight: 1, test_share: 0.2 }}
    - {{ name: metamathqa, path: "{folder}/MetaMathQA-395K.json", weight: 3, loss: response, test_share: 0.1 }}
    - {{ name: jsonl, path: "{folder}/plain.jsonl", response: "{{text}}", weight: 2, test_share: 0.1 }}
batch:     {{ global: 24, micro: 4 }}
optimizer: {{ lr: 1.0e-3 }}
parallel:  {{ backend: gloo }}
run:       {{ steps: 12, evaluate: 6, checkpoint: {{ every: 3, keep: 100 }} }}
"""


def launch(recipe, output, ranks, *more):
    return expect_success(run("launch", recipe, "--ranks", ranks, "--set", f"run.output={output}", *more))


def events(directory, kind):
    lines = (directory / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["kind"] == kind]


def texts(folder):
    write_tokenizer(folder / "tokenizer", [f"{a} and {a * 7}" for a in range(200)], qwen=True)
    write_metamathqa(folder / "MetaMathQA-395K.json", 300)
    with open(folder / "small.jsonl", "w") as file:
        file.writelines(json.dumps({"q": str(a), "a": str(a * a)}) + "\n" for a in range(40))
    with open(folder / "plain.jsonl", "w") as file:
        file.writelines(json.dumps({"text": f"the number {a} is {a % 9} more than {a - a % 9}"}) + "\n" for a in range(300))
    recipe = folder / "mixed.yaml"
    recipe.write_text(RECIPE.format(folder=folder))
    small, plain = f"jsonl {folder}/small.jsonl", f"jsonl {folder}/plain.jsonl"

    said = launch(recipe, folder / "one", 1)
    whole = only_run(folder / "one")
    expected = losses(whole)
    assert len(expected) == STEPS
    # Shares, epochs of the run ahead and behind, which are the same, and what is seen too often.
    assert f"mixture: {small} 16.7 % (" in said and "metamathqa 50.0 % (" in said and f"{plain} 33.3 % (" in said, said
    ahead = said.split("epochs of the run: ")[1].split("; one of the mixture is ")[0]
    assert f"epochs seen: {ahead}\n" in said, said
    seen = [float(words.rsplit(" ", 1)[1]) for words in ahead.split(", ")]
    rows = {name: int(said.split(f"{name} ")[1].split("(")[1].split(" ")[0]) for name in (small, "metamathqa", plain)}
    turns = [epochs * count for epochs, count in zip(seen, rows.values())]
    assert abs(sum(turns) - STEPS * 24) < 3, (turns, rows)
    for count, share in zip(turns, (1 / 6, 1 / 2, 1 / 3)):
        assert abs(count - share * STEPS * 24) < 25, turns
    assert seen[0] > 4 and f"warning: the run sees all of {small} {seen[0]:.1f} times" in said, said

    # By member and in all, in words, as events and by `dstrain evaluate`.
    for step in (HALF, STEPS):
        own = [event for event in events(whole, "evaluated_member") if event["step"] == step]
        assert [event["member"] for event in own] == [small, "metamathqa", plain], own
        targets = [int(event["targets"]) for event in own]
        mean = sum(float(event["loss"]) * count for event, count in zip(own, targets)) / sum(targets)
        all_ = metrics(whole, "evaluation")[step]
        assert abs(mean - all_["loss"]) < 1e-9 and sum(targets) == all_["targets"], (own, all_)
    assert f"  {small}: loss " in said and "  metamathqa: loss " in said, said
    expect_success(run("evaluate", whole, "--ranks", 2))
    found = json.loads((only_run(whole / "evaluations") / "evaluation.json").read_text())
    last = metrics(whole, "evaluation")[STEPS]
    assert abs(found["loss"] - last["loss"]) < 1e-5 and list(found["members"]) == [small, "metamathqa", plain], found

    # Other ranks take the same samples; sums are in another order.
    for ranks in (2, 3):
        launch(recipe, folder / f"on{ranks}", ranks)
        for step, loss in losses(only_run(folder / f"on{ranks}")).items():
            assert abs(loss - expected[step]) < 1e-5 * expected[step], (ranks, step, loss, expected[step])
    for ranks in (1, 2, 3):
        resumed = copy_until(whole, folder / f"resumed{ranks}" / whole.name, HALF)
        text = launch(recipe, folder / f"resumed{ranks}", ranks, "--resume", resumed)
        assert f"resumed at step {HALF}" in text and "changed since the checkpoint" not in text, text
        assert f"epochs seen: {ahead}\n" in text, text
        for step, loss in losses(resumed).items():
            tolerance = 0 if ranks == 1 else 1e-5 * expected[step]
            assert abs(loss - expected[step]) <= tolerance, (ranks, step, loss, expected[step])

    # The resolved recipe is the same run, and says why keys have no effect.
    resolved = expect_success(run("recipe", "show", recipe))
    again = folder / "again.yaml"
    again.write_text(resolved)
    shown = run("recipe", "check", again)
    assert shown.returncode == 0 and "warning" not in shown.stdout + shown.stderr, shown
    assert "no effect: the members have weights" in resolved and "no effect: each member of data.mixture says it" in resolved, resolved
    counted = json.loads(run("data", "prepare", recipe, "--json").stdout)
    assert list(counted["train"]) == [small, "metamathqa", plain] and counted["train"]["metamathqa"]["records"] == 300, counted
    records = expect_success(run("data", "show", recipe, "-n", 2))
    assert records.count("---") == 6, records

    # An epoch is over when the smallest member has been seen.
    said = launch(recipe, folder / "short", 1, "--set", "run.steps=0", "--set", "run.epochs=1", "--set", "data.epoch_of=shortest",
                  "--set", "run.evaluate=never")
    assert f"epochs seen: {small} 1.00, " in said, said

    # What is wrong has its key.
    done = run("launch", recipe, "--ranks", 1, "--set", f"run.output={folder}/never", "--set", "data.mixture.2.path=nowhere.jsonl")
    assert done.returncode == 65 and "data.mixture.2.path: 'nowhere.jsonl' is not there" in done.stderr, done
    (folder / "plain.jsonl").write_text("no json\n")
    done = run("launch", recipe, "--ranks", 1, "--set", f"run.output={folder}/never")
    assert done.returncode == 65 and "data.mixture.2: " in done.stderr + done.stdout and "plain.jsonl" in done.stderr + done.stdout, done


def shards(folder):
    """Raw parts that are prepared and deleted one by one, and what is left as a member of a mixture."""
    folder.mkdir()
    write_tokenizer(folder / "tokenizer", [f"{a} and {a * 7}" for a in range(200)], qwen=True)
    recipe = folder / "raw.yaml"
    recipe.write_text(f"""
model:     {{ name: bloom-560m, layers: 1, width: 32, heads: 2, vocab_size: 512 }}
data:
  name: jsonl
  path: "{folder}/raw.jsonl"
  response: "{{text}}"
  sequence: 32
  tokenizer: "{folder}/tokenizer"
  cache: "{folder}/shards"
  test_share: 0.1
batch:     {{ global: 8, micro: 4 }}
optimizer: {{ lr: 1.0e-3 }}
parallel:  {{ backend: gloo }}
run:       {{ steps: 3, evaluate: 3 }}
""")
    samples = 0
    for part in range(3):
        with open(folder / "raw.jsonl", "w") as file:
            file.writelines(json.dumps({"text": f"part {part} has line {line}"}) + "\n" for line in range(50))
        counted = json.loads(run("data", "prepare", recipe, "--json").stdout)
        samples += sum(split["samples"] for split in counted.values())
        (folder / "raw.jsonl").unlink()
    assert samples == 150
    prepared = ["--set", "data.name=tokens", "--set", f"data.path={folder}/shards", "--set", f"data.cache={folder}/cache"]
    counted = json.loads(run("data", "prepare", recipe, "--json", *prepared).stdout)
    assert sum(split["samples"] for split in counted.values()) == 150 and counted["train"]["records"] == 150, counted
    shown = expect_success(run("data", "show", recipe, "-n", 1, *prepared))
    assert " has line " in shown and ".tokens: record " in shown, shown
    said = launch(recipe, folder / "runs", 2, *prepared)
    assert "has no effect" in said and "test loss" in said, said  # data.response, whose form the files have

    (folder / "more.jsonl").write_text("".join(json.dumps({"q": str(a), "a": str(a)}) + "\n" for a in range(40)))
    mixed = folder / "mixed.yaml"
    text = recipe.read_text()
    begin, end = text.index("  name: jsonl"), text.index("  sequence")
    mixed.write_text(text[:begin] + f"""  mixture:
    - {{ name: tokens, path: "{folder}/shards", test_share: 0.1 }}
    - {{ name: jsonl, path: "{folder}/more.jsonl", prompt: "{{q}}", response: "{{a}}", test_share: 0.1 }}
""" + text[end:].replace("  test_share: 0.1\n", ""))
    said = launch(mixed, folder / "mixed", 1, "--set", f"data.cache={folder}/cache")
    assert "mixture: tokens " in said and "  tokens: loss " in said, said

    write_tokenizer(folder / "other", ["other texts give another tokenizer"], qwen=True)
    done = run("data", "prepare", recipe, *prepared, "--set", f"data.tokenizer={folder}/other")
    assert done.returncode == 65 and "its tokens are of another tokenizer" in done.stderr, done


def images(folder):
    for name, shift in (("left", 0), ("right", 1)):
        (folder / name).mkdir()
        for file in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
            (folder / name / f"{file}.bin").write_bytes(b"".join(bytes([(i + shift) % 10]) + bytes([20 * i % 256]) * 3072 for i in range(20)))
    recipe = folder / "images.yaml"
    recipe.write_text(f"""
model:     {{ name: vit-tiny, layers: 1, width: 32, heads: 2, mlp_width: 64, image_size: 32, patch_size: 8 }}
data:
  augment: [horizontal_flip]
  mixture: [{{ name: cifar10, path: "{folder}/left", weight: 3 }}, {{ name: cifar10, path: "{folder}/right", weight: 1 }}]
batch:     {{ global: 16, micro: 8 }}
optimizer: {{ lr: 1.0e-3 }}
parallel:  {{ backend: gloo }}
run:       {{ epochs: 1, evaluate: epoch }}
""")
    said = launch(recipe, folder / "pictures", 2)
    assert f"mixture: cifar10 {folder}/left 75.0 % (100 samples), cifar10 {folder}/right 25.0 % (100 samples)" in said, said
    assert f"  cifar10 {folder}/left: accuracy " in said and "one of the mixture is 200 samples" in said, said
    # The whole confusion is that of all members.
    lines = (only_run(folder / "pictures") / "classes.csv").read_text().splitlines()
    column = lines[0].split(",").index("images")
    assert sum(int(line.split(",")[column]) for line in lines[1:]) == 40, lines


with tempfile.TemporaryDirectory() as scratch:
    os.environ["DSTRAIN_CACHE"] = str(pathlib.Path(scratch) / "dstrain")
    texts(pathlib.Path(scratch))
    shards(pathlib.Path(scratch) / "tokens")
    images(pathlib.Path(scratch))
print("ok")
