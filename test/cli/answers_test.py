"""Answers of evaluations are scored: SQuAD by exact match and F1, MetaMathQA by its authors' rule; the figures are those of the answers, the same
on any ranks, after a resume and from `dstrain generate --test`, and run.best takes them."""
import json
import pathlib
import tempfile

from support import expect_success, metrics, only_run, run
from text_files import write_tokenizer  # leaves with 77 without tokenizers

ASKED, TOKENS = 4, 24
COLOURS = ["red", "green", "blue", "black"]


def write_squad(folder):
    folder.mkdir()
    for name, count in (("train-v1.1.json", 64), ("dev-v1.1.json", 12)):
        paragraphs = []
        for i in range(count):
            colour = COLOURS[i % 4] if i % 2 else "dark red"
            context = f"House {i} is {colour}."
            answers = [dict(text=text, answer_start=context.index(text)) for text in (colour, colour.split()[-1])]
            paragraphs.append(dict(context=context, qas=[dict(id=str(i), question="Which colour?", answers=answers)]))
        (folder / name).write_text(json.dumps(dict(version="1.1", data=[dict(title="houses", paragraphs=paragraphs)])))


def write_maths(path):
    """Half of each kind: numbers and expressions."""
    path.write_text(json.dumps([
        dict(query=f"Half of {a}?", type=kind, original_question=f"{a} {kind}", response=f"So it is.\nThe answer is: {gold}")
        for a in range(40) for kind, gold in (("GSM_Rephrased", "5"), ("MATH_AnsAug", "\\frac{1}{2}"))]))


def launch(output, ranks, *settings, resume=None):
    words = [word for setting in (f"run.output={output}", *settings) for word in ("--set", setting)]
    return expect_success(run("launch", RECIPE, "--ranks", ranks, *words, *(["--resume", resume] if resume else [])))


def generated(folder):
    """{step: [fields]} of the answers."""
    found = {}
    for line in (folder / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["kind"] == "generated":
            found.setdefault(event["step"], []).append(event)
    return found


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def check_figures(folder, names):
    """Each evaluation's figures are the means of its answers'; the others are unknown. Returns {step: {name: value}}."""
    lines, answers = metrics(folder, "evaluation"), generated(folder)
    assert lines and sorted(lines) == sorted(answers), (sorted(lines), sorted(answers))
    for step, line in lines.items():
        assert len(answers[step]) == ASKED, answers[step]
        for name in ("exact_match", "f1", "right_answers"):
            if name not in names:
                assert line[name] is None, line
                continue
            each = [one["right"] == "true" if name == "right_answers" else float(one[name]) for one in answers[step]]
            assert abs(line[name] - mean(each)) < 1e-4, (line, answers[step])
    return {step: {name: line[name] for name in names} for step, line in lines.items()}


def check_best(folder, metric, figures):
    """best.json names the first evaluation with the highest figure, whose checkpoint is there."""
    best = json.loads((folder / "best.json").read_text())
    assert best["metric"] == metric and best["evaluations"] == [[step, figures[step][metric]] for step in sorted(figures)], (best, figures)
    top = max(one[metric] for one in figures.values())
    assert best["step"] == min(step for step in figures if figures[step][metric] == top) and best["value"] == top, (best, figures)
    assert (folder / f"checkpoints/step-{best['step']:08}").is_dir()
    return best


def check_asked(folder, best, metric):
    """`generate --test` asks the best checkpoint the same questions and gets the same answers."""
    done = run("generate", folder, "--cpu", "--dtype", "fp32", "--test", ASKED, "--tokens", TOKENS)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    events = generated(folder)[best["step"]]
    assert [line["answer"] for line in lines] == [event["answer"] for event in events], (lines, events)
    assert [line["prompt"] for line in lines] == [event["prompt"] for event in events], (lines, events)
    key = "right" if metric == "right_answers" else metric
    assert abs(mean(line[key] for line in lines) - best["value"]) < 1e-9, (lines, best)
    return lines, done.stderr


def check_resume(scratch, metric, figures, *settings):
    """In two parts as in one."""
    last = max(figures)
    launch(scratch / f"{metric}-parts", 1, *settings, f"run.steps={last // 2}")
    launch(scratch / f"{metric}-parts", 1, *settings, f"run.steps={last}", resume="auto")
    parts = only_run(scratch / f"{metric}-parts")
    assert check_figures(parts, list(figures[last])) == figures
    return parts


with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    write_squad(scratch / "squad")
    write_maths(scratch / "maths.json")
    write_tokenizer(scratch / "tokenizer", [(scratch / "squad/train-v1.1.json").read_text(), (scratch / "maths.json").read_text()], qwen=True)
    tiny = ["model.weights=", f"data.cache={scratch}/cache", f"data.tokenizer={scratch}/tokenizer", "data.workers=1", "data.loss=response",
            "parallel.backend=gloo", "precision.compute=fp32", "model.vocab_size=400", "model.width=32", "model.layers=2", "model.heads=4",
            "model.kv_heads=2", "model.mlp_width=64", "batch.global=8", "batch.micro=4", "optimizer.lr=0.01", "optimizer.warmup_steps=0",
            "optimizer.schedule=constant", f"run.generate={ASKED}", f"run.generate_tokens={TOKENS}", "run.epochs=0", "run.evaluate=8",
            "run.checkpoint.every=16", "run.checkpoint.keep=1", "data.packing=false"]
    RECIPE = "recipes/qwen/qwen2.5-3b_metamathqa.yaml"

    squad = [*tiny, "data.name=squad", f"data.path={scratch}/squad", "data.test_share=0", "data.sequence=64", "run.best.metric=f1"]
    text = launch(scratch / "squad-runs", 2, *squad, "run.steps=48")
    folder = only_run(scratch / "squad-runs")
    figures = check_figures(folder, ["exact_match", "f1"])
    best = check_best(folder, "f1", figures)
    assert 0 < best["value"] and f"best: f1 {best['value']:.6g} at step {best['step']}" in text, (best, text)
    assert text.count(f"of {ASKED} answers") == len(figures) + 1, text
    lines, told = check_asked(folder, best, "f1")
    assert [len(line["expected"]) for line in lines] == [2] * ASKED and "right" not in lines[0], lines
    assert f"F1 {100 * best['value']:.2f}% of {ASKED} answers" in told, (told, best)
    assert any(b"evaluation/f1" in file.read_bytes() for file in (folder / "tensorboard").iterdir())
    parts = check_resume(scratch, "f1", figures, *squad)
    assert json.loads((parts / "best.json").read_text()) == json.loads((folder / "best.json").read_text())

    maths = [*tiny, "data.name=metamathqa", f"data.path={scratch}/maths.json", "data.test_share=0.2", "data.sequence=160",
             "run.best.metric=right_answers"]
    text = launch(scratch / "maths-runs", 1, *maths, "run.steps=64")
    folder = only_run(scratch / "maths-runs")
    figures = check_figures(folder, ["right_answers"])
    best = check_best(folder, "right_answers", figures)
    assert best["value"] > 0, (figures, [one["answer"] for one in generated(folder)[64]])
    lines, told = check_asked(folder, best, "right_answers")
    golds = {tuple(line["expected"]) for line in lines}
    assert golds <= {("5",), ("\\frac{1}{2}",)} and "f1" not in lines[0], lines
    assert f"{100 * best['value']:.2f}% right of {ASKED} answers" in told, (told, best)

    # No prompt leaves room for an answer.
    done = run("launch", RECIPE, "--ranks", 1, *[word for one in [*squad, "run.steps=8", "data.sequence=16", "data.loss=all", f"run.output={scratch}/full"]
                                                 for word in ("--set", one)])
    assert done.returncode == 64 and "leaves room for an answer in data.sequence (16)" in done.stdout + done.stderr, done
    # The report has them.
    for figure, title, where in (("f1", "F1", "squad-runs"), ("right_answers", "right answers", "maths-runs")):
        report = json.loads(expect_success(run("report", only_run(scratch / where), "--json")))
        rows = report["runs"][0]["evaluations"]
        assert any(row[figure] for row in rows) and title in expect_success(run("report", only_run(scratch / where))), rows

    for recipe, settings, what in (
            ("bloom/bloom-560m_squad", ["run.best.metric=f1", "run.generate=0"], "f1, but run.generate is 0"),
            ("bloom/bloom-560m_squad", ["run.best.metric=right_answers", "run.generate=2"], "answers to data.name squad have no such figure"),
            ("qwen/qwen2.5-3b_metamathqa", ["run.best.metric=exact_match", "run.generate=2"], "use right_answers"),
            ("qwen/qwen2.5-3b_random", ["run.best.metric=f1", "run.generate=2"], "use loss"),
            ("quickstart", ["run.best.metric=f1"], "takes images")):
        done = run("recipe", "check", f"recipes/{recipe}.yaml", *[word for one in settings for word in ("--set", one)])
        assert done.returncode == 64 and what in done.stderr and "run.best.metric" in done.stderr, (what, done.returncode, done.stderr)
print("answers: ok")
