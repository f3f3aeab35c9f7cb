"""Chats beside TRL's SFTTrainer: ids and what is trained, for templates and tokenizers of eight families. test/chat/make_trl_golden.py wrote
what TRL makes of them; nothing of it is needed here."""
import gzip
import json
import os
import pathlib
import tempfile

from support import ROOT, run

GOLDEN = ROOT / "test/golden/chat"
with gzip.open(GOLDEN / "trl.json.gz", "rt") as file:
    FAMILIES = json.load(file)["families"]
with gzip.open(GOLDEN / "renders.json.gz", "rt") as file:
    TEMPLATES = json.load(file)["templates"]


def rows_of(folder, family, case):
    """[(ids, marks)] that `dstrain data show` prints of a case."""
    (folder / "data.jsonl").write_text("".join(json.dumps(record) + "\n" for record in case["records"]))
    (folder / "template.jinja").write_text(TEMPLATES[case["template"]])
    settings = {"data.name": case["format"], **case["settings"]}
    if case["format"] == "chat":
        settings["data.template"] = str(folder / "template.jinja")
    done = run("data", "show", folder / "recipe.yaml", "-n", 100, "--json", *(f"--set={key}={json.dumps(value)}" for key, value in settings.items()))
    assert done.returncode == 0, (case["what"], done.stderr)
    return [(row["tokens"], row["trained"]) for row in map(json.loads, done.stdout.splitlines())]


def check_marks(what, ids, ours, theirs):
    """Equal, or TRL also trains text of the template: by completion_only_loss all behind the stop token, by marks that stand elsewhere than
    our rule's also what stands between."""
    if what in ("completion", "answers by the rule"):
        assert sum(ours) > 0 and all(mine <= other for mine, other in zip(ours, theirs)), (ids, ours, theirs)
        if what == "completion":
            end = len(ours) - ours[::-1].index(1)
            assert ours[:end] == theirs[:end], (ids, ours, theirs)
        return
    assert ours[0] == 0 and ours[1:] == theirs[1:], (ids, ours, theirs)  # nothing predicts the first token


with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    os.environ["DSTRAIN_CACHE"] = str(scratch / "cache")
    count = exact = 0
    for name, family in FAMILIES.items():
        folder = scratch / name
        (folder / "tokenizer").mkdir(parents=True)
        (folder / "tokenizer/tokenizer.json").write_text(family["tokenizer"])
        (folder / "tokenizer/tokenizer_config.json").write_text(json.dumps(family["tokens"]))
        (folder / "recipe.yaml").write_text(f"""
model:     {{ name: qwen2.5-0.5b }}
data:      {{ path: {folder}/data.jsonl, tokenizer: {folder}/tokenizer, sequence: 2048, test_share: 0 }}
batch:     {{ global: 1, micro: 1 }}
optimizer: {{ name: adamw, lr: 1e-5 }}
run:       {{ steps: 1, evaluate: never }}
""")
        for case in family["cases"]:
            ours = rows_of(folder, family, case)
            assert len(ours) == len(case["rows"]), (name, case["what"], len(ours), len(case["rows"]))
            for (ids, marks), (wanted, labels) in zip(ours, case["rows"]):
                assert ids == wanted, (name, case["what"], ids, wanted)
                try:
                    check_marks(case["what"], ids, marks, labels)
                except AssertionError as error:
                    raise AssertionError(f"{name}: {case['what']}: {error}") from None
                count += 1
                exact += marks[1:] == labels[1:]
    assert count > 300, count
    print(f"trl: {count} samples of {len(FAMILIES)} families, {exact} with equal marks, the others train text of the template less")
