"""The fine-tuning recipes, made tiny, from files to an exported model on the CPU: SQuAD with BLOOM, MetaMathQA with Qwen2.5 (packed, in
full and with adapters), their resumption, and what transformers says of the result."""
import json
import pathlib
import tempfile

try:
    import torch
    import transformers
    from tokenizers import Tokenizer
except ImportError as missing:
    print(f"skipped: {missing}")
    raise SystemExit(77)

from support import expect_success, losses, metrics, only_run, run
from text_files import write_metamathqa, write_tokenizer

COLOURS = ["red", "green", "blue", "black", "white", "brown"]
THINGS = ["apple", "car", "house", "river", "stone", "tree", "bird", "book", "door", "lamp"]


def write_squad(folder, train, test):
    folder.mkdir()
    for name, count, first in (("train-v1.1.json", train, 0), ("dev-v1.1.json", test, 1000)):
        paragraphs = []
        for i in range(first, first + count):
            thing, colour = THINGS[i % 10], COLOURS[(i * 7 + i // 10) % 6]
            context = f"The {thing} of house {i} is {colour}."
            paragraphs.append({"context": context, "qas": [{
                "id": str(i), "question": f"Which colour has the {thing}?",
                "answers": [{"text": colour, "answer_start": context.index(colour)}]}]})
        (folder / name).write_text(json.dumps({"version": "1.1", "data": [{"title": "houses", "paragraphs": paragraphs}]}))


def launch(recipe, output, ranks, *settings):
    arguments = [word for setting in settings for word in (("--set", setting) if "=" in setting else setting.split(" ", 1))]
    return expect_success(run("launch", recipe, "--ranks", ranks, "--set", f"run.output={output}", *arguments))


def check_resume(recipe, scratch, name, settings):
    """Saved half way and resumed, the losses are those of the unbroken run, bit for bit."""
    launch(recipe, scratch / f"{name}_whole", 2, *settings)
    whole = only_run(scratch / f"{name}_whole")
    expected = losses(whole)
    last = max(expected)
    newest = sorted((whole / "checkpoints").glob("step-*"))[-1]
    if int(newest.name.split("-")[1]) == last:
        import shutil
        shutil.rmtree(newest)
    text = launch(recipe, scratch / f"{name}_whole", 2, *settings, f"--resume {whole}")
    assert "resumed at step" in text, text
    assert losses(whole) == expected, (losses(whole), expected)
    return whole, expected


with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    write_squad(scratch / "squad", 96, 16)
    write_metamathqa(scratch / "MetaMathQA-395K.json", 200)
    texts = [(scratch / "squad/train-v1.1.json").read_text(), (scratch / "MetaMathQA-395K.json").read_text()]
    write_tokenizer(scratch / "bloom", texts, qwen=False)
    write_tokenizer(scratch / "qwen", texts, qwen=True)
    tiny = ["model.weights=", f"data.cache={scratch}/cache", "parallel.backend=gloo", "precision.compute=fp32", "model.vocab_size=400",
            "model.width=32", "model.layers=2", "model.heads=4", "batch.micro=4", "batch.global=8",
            "optimizer.lr=0.003", "optimizer.warmup_steps=2", "run.generate=2", "run.generate_tokens=6", "data.workers=1"]

    # BLOOM on SQuAD.
    squad = [*tiny, f"data.path={scratch}/squad", f"data.tokenizer={scratch}/bloom", "data.sequence=64", "run.epochs=2",
             "run.checkpoint.every=12"]
    whole, curve = check_resume("recipes/bloom/bloom-560m_squad.yaml", scratch, "squad", squad)
    said = expect_success(run("launch", "recipes/bloom/bloom-560m_squad.yaml", "--ranks", 1, "--set", f"run.output={scratch}/said",
                              *[word for setting in [*squad, "run.epochs=0", "run.steps=2", "run.evaluate=2"] for word in ("--set", setting)]))
    assert said.count("data, test: 16 samples") == 1 and said.count("data, train: 96 samples") == 1, said
    assert curve[max(curve)] < 0.8 * curve[1], curve
    evaluations = metrics(whole, "evaluation")
    assert evaluations, "no evaluation"
    assert '"kind":"generated"' in (whole / "events.jsonl").read_text().replace(" ", "")

    # The exported model gives the evaluated loss in transformers.
    expect_success(run("checkpoint", "export", whole, scratch / "exported"))
    model = transformers.AutoModelForCausalLM.from_pretrained(scratch / "exported").float().eval()
    tokenizer = Tokenizer.from_file(str(scratch / "bloom/tokenizer.json"))
    end = tokenizer.token_to_id("</s>")
    total = count = 0
    for article in json.loads((scratch / "squad/dev-v1.1.json").read_text())["data"]:
        for paragraph in article["paragraphs"]:
            for qa in paragraph["qas"]:
                text = f"Question: {qa['question']} Context: {paragraph['context']} Answer: {qa['answers'][0]['text']}"
                ids = torch.tensor([(tokenizer.encode(text).ids + [end])[:64]])
                with torch.no_grad():
                    total += model(ids, labels=ids).loss.item() * (ids.shape[1] - 1)
                count += ids.shape[1] - 1
    last = evaluations[max(evaluations)]
    assert last["targets"] == count, (last, count)
    assert abs(last["loss"] - total / count) < 2e-5 * last["loss"], (last, total / count)

    # Qwen2.5 on MetaMathQA, packed, under ZeRO-3.
    maths = [*tiny, f"data.path={scratch}/MetaMathQA-395K.json", f"data.tokenizer={scratch}/qwen", "data.sequence=160", "model.kv_heads=2", "model.mlp_width=64",
             "data.test_share=0.1", "run.evaluate=epoch"]
    whole, curve = check_resume("recipes/qwen/qwen2.5-3b_metamathqa.yaml", scratch, "maths",
                                [*maths, "run.epochs=2", "parallel.zero.stage=3", "run.checkpoint.every=5"])
    assert curve[max(curve)] < 0.8 * curve[1], curve
    expect_success(run("checkpoint", "export", whole, scratch / "exported_qwen"))
    transformers.AutoModelForCausalLM.from_pretrained(scratch / "exported_qwen")

    # Adapters on the exported model: only they are saved, the base stays.
    adapters = [s for s in maths if not s.startswith("model.weights")] + [f"model.weights={scratch}/exported_qwen", "run.epochs=1",
                                                                  "run.checkpoint.every=5"]
    adapters = [s for s in adapters if not s.startswith("optimizer")] + ["lora.dropout=0.1"]
    whole, curve = check_resume("recipes/qwen/qwen2.5-3b_metamathqa_lora.yaml", scratch, "lora", adapters)
    saved = sorted((whole / "checkpoints").glob("step-*"))[-1]
    size = sum(f.stat().st_size for f in saved.glob("*.safetensors"))
    assert size < 200_000, size
print("text: ok")
