"""Pairs of answers: every form of record, what is refused, and what a run says of them. preference_trl_test.py compares with TRL."""
import json
import os
import pathlib
import tempfile

from support import expect_success, metrics, only_run, run
from text_files import write_tokenizer  # leaves with 77 without tokenizers

TEMPLATE = """{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"""


def said(role, content):
    return dict(role=role, content=content)


def show(rows, *settings, code=0):
    """[(record, ids, marks)] of the training split, and what was said."""
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = run("data", "show", folder / "pairs.yaml", "-n", 100, "--json", *[word for one in settings for word in ("--set", one)])
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return [(line["record"], line["tokens"], line["trained"]) for line in lines], done.stderr


def marked(rows):
    return [(ids, marks) for _, ids, marks in rows]


def check(*settings):
    return run("recipe", "check", folder / "pairs.yaml", *[word for one in settings for word in ("--set", one)])


with tempfile.TemporaryDirectory() as scratch:
    folder = pathlib.Path(scratch)
    os.environ["DSTRAIN_CACHE"] = str(folder / "cache")
    write_tokenizer(folder / "model", ["a question of some words", "an answer"], qwen=True)
    (folder / "model/chat_template.jinja").write_text(TEMPLATE)
    (folder / "pairs.yaml").write_text(f"""
model:      {{ name: llama-3.2-1b, vocab_size: 400, width: 32, layers: 2, heads: 2, kv_heads: 1, head_dim: 16, mlp_width: 48 }}
data:       {{ name: chat, path: {folder}/pairs.jsonl, tokenizer: {folder}/model, sequence: 96, test_share: 0 }}
batch:      {{ global: 4, micro: 2 }}
preference: {{ loss: dpo }}
optimizer:  {{ name: adamw, lr: 0.01, schedule: constant }}
precision:  {{ compute: fp32 }}
parallel:   {{ backend: gloo }}
run:        {{ steps: 6, evaluate: 3, output: {folder}/runs }}
""")

    # Two texts, or messages with the prompt beside them or in both; answers are trained as those of a chat.
    texts, _ = show([dict(prompt="a b", chosen=" yes", rejected=" no no")])
    assert [record.split(", ")[1] for record, _, _ in texts] == ["chosen", "rejected"] and texts[0][0].endswith("record 1, chosen"), texts
    assert all(sum(marks) > 1 and marks[:2] == [0, 0] and marks[-1] == 1 for _, _, marks in texts), texts
    whole, _ = show([dict(chosen="a b yes", rejected="a b no no")])
    assert marked(whole) == marked(texts), (whole, texts)
    prompt, yes, no = [said("system", "Be kind."), said("user", "Well?")], said("assistant", "yes"), said("assistant", "no")
    beside, _ = show([dict(prompt=prompt, chosen=[yes], rejected=[no])])
    for other in (dict(chosen=[*prompt, yes], rejected=[*prompt, no]), dict(prompt="Well?", chosen=[*prompt, yes], rejected=[*prompt, no]),
                  dict(prompt=prompt, chosen=[*prompt, yes], rejected=[*prompt, no])):
        assert marked(show([other])[0]) == marked(beside), other
    answers, _ = show([dict(messages=[*prompt, yes]), dict(messages=[*prompt, no])], "preference.loss=none", "data.loss=assistant")
    assert marked(answers) == marked(beside), (answers, beside)

    # Parquet has the same pairs.
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        pass
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([dict(chosen=[*prompt, yes], rejected=[*prompt, no], score=1.0)]),
                                    folder / "pairs.parquet")
        done = run("data", "show", folder / "pairs.yaml", "--json", f"--set=data.path={folder}/pairs.parquet")
        assert [(line["tokens"], line["trained"]) for line in map(json.loads, done.stdout.splitlines())] == marked(beside), done.stderr

    # What is no pair is left out and named, or ends the run.
    good = dict(prompt="a b", chosen=" yes", rejected=" no no")
    for bad, why in ((dict(prompt="a", chosen="b", rejected="b"), "the chosen answer is the rejected one"),
                     (dict(prompt="a", chosen="b", rejected=""), "the rejected answer is empty"),
                     (dict(chosen=[said("user", "a"), yes], rejected=[said("user", "b"), no]), "the first messages differ"),
                     (dict(prompt="a", chosen="b", rejected="c", images=["x"]), "pairs with images"),
                     (dict(messages=[*prompt, yes]), "the record is no pair"),
                     (dict(prompt="a", chosen="b " * 60, rejected="c"), "its two answers with their prompts have")):
        rows, told = show([good, bad])
        assert marked(rows) == marked(texts), rows
        assert "1 pairs of answers, 1 left out" in told and "pairs.jsonl: record 2: " in told and why in told, told
        stop = "data.too_long=stop" if "have" in why else "data.bad_record=stop"
        _, told = show([good, bad], stop, code=65)
        assert "record 2" in told and why in told, told
    _, told = show([good], "preference.loss=none", code=65)
    assert "which preference.loss trains" in told, told

    # What pairs do not go with.
    for setting, words in (("data.packing=true", "a sample is a pair already"), ("data.split_turns=true", "one answer on each side"),
                           ("data.too_long=turns", "both answers of a pair"), ("parallel.tensor=2", "needs the whole of each pair"),
                           ("parallel.sequence=2", "needs the whole of each pair"), ("data.name=jsonl", "has no pairs of answers"),
                           ("run.best.metric=perplexity", "the loss of pairs has none"), ("preference.smoothing=0.5", "preference.smoothing")):
        done = check(setting)
        assert done.returncode == 64 and words in done.stderr, (setting, done.stderr)
    for settings, words in ((["preference.gamma=1"], "asks for no margin"), (["preference.loss=orpo", "preference.smoothing=0.1"], "only dpo"),
                            (["preference.loss=none", "preference.beta=1"], "no pairs"), (["data.loss=response"], "takes the answers of pairs")):
        done = check(*settings)
        assert done.returncode == 0 and "has no effect" in done.stderr and words in done.stderr, (settings, done.stderr)

    # A run: figures by TRL's names, and a report of them. Its own resolved recipe gives no warning.
    rows = [dict(prompt=f"{a} and {a + 1}", chosen=f" {2 * a + 1}", rejected=f" {a}{a}{a}") for a in range(12)]
    (folder / "split").mkdir()
    for split, some in (("train", rows), ("test", rows[:3])):
        (folder / f"split/{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
    told = expect_success(run("launch", folder / "pairs.yaml", f"--set=data.path={folder}/split", "--ranks", 2))
    assert "data.sequence: " in told and " holds all pairs, too" in told, told
    assert "data, train: 12 pairs of answers" in told and "reference: log-probabilities of 12 pairs" in told, told
    assert "margin 0.0000" in told and " on 3 pairs" in told, told
    directory = only_run(folder / "runs")
    steps = metrics(directory)
    first, last = steps[1], steps[6]
    assert first["rewards/margins"] == first["rewards/chosen"] == first["rewards/rejected"] == first["rewards/accuracies"] == 0, first
    assert abs(first["loss"] - 0.693147) < 1e-6 and last["loss"] < first["loss"] and last["rewards/margins"] > 0, last
    assert abs(last["rewards/margins"] - last["rewards/chosen"] + last["rewards/rejected"]) < 1e-6 and last["logps/chosen"] < 0, last
    evaluations = metrics(directory, "evaluation")
    assert evaluations[6]["rewards/margins"] > 0 and evaluations[6]["targets"] == 3, evaluations
    report = expect_success(run("report", directory))
    assert "rewards/margins" in report and "logps/chosen" in report, report
    assert "warning" not in expect_success(run("recipe", "check", directory / "recipe.yaml"))
    # Once more, and evaluated after it: the reference is read.
    told = expect_success(run("launch", folder / "pairs.yaml", f"--set=data.path={folder}/split", "--set=preference.loss=ipo"))
    assert "reference:" not in told, told
    told = expect_success(run("evaluate", directory))
    assert "reference:" not in told and " on 3 pairs" in told and f"margin {evaluations[6]['rewards/margins']:.4f}" in told, told
    # A run that is stopped and resumed goes on as one that was not, beside the same reference.
    whole = [metrics(directory)[step] for step in range(4, 7)]
    (folder / "half").mkdir()
    half = ["launch", folder / "pairs.yaml", f"--set=data.path={folder}/split", "--ranks", 2, f"--set=run.output={folder}/half"]
    expect_success(run(*half, "--set=run.steps=3", "--set=run.checkpoint.every=3"))
    [stopped] = (folder / "half").iterdir()
    told = expect_success(run(*half, "--resume", stopped))
    assert "resumed at step 3" in told and "reference:" not in told, told
    for one, other in zip(whole, [metrics(stopped)[step] for step in range(4, 7)]):
        for name in ("loss", "rewards/chosen", "rewards/margins", "logps/rejected", "grad_norm"):
            assert one[name] == other[name], (name, one, other)
    # Without a reference nothing is made.
    before = len(list((folder / "cache/tokens").glob("reference-*")))
    expect_success(run("launch", folder / "pairs.yaml", f"--set=data.path={folder}/split", "--set=preference.loss=simpo", "--set=run.seed=3"))
    assert before == len(list((folder / "cache/tokens").glob("reference-*"))) == 2, before
    assert "one of each pair" in expect_success(run("data", "prepare", folder / "pairs.yaml", f"--set=data.path={folder}/split"))
print("preference: records, refusals, figures")
