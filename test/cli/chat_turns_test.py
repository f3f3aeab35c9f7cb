"""Samples of chats: one for each answer (data.split_turns), without the oldest turns where they do not fit (data.too_long: turns), on another
day (data.chat_date); and a run's own form of chats in `generate`."""
import gzip
import json
import os
import pathlib
import tempfile

from support import ROOT, expect_success, run

GOLDEN = ROOT / "test/golden/chat"
with gzip.open(GOLDEN / "trl.json.gz", "rt") as file:
    FAMILIES = json.load(file)["families"]
with gzip.open(GOLDEN / "renders.json.gz", "rt") as file:
    TEMPLATES = json.load(file)["templates"]


def turns(*texts, system=None):
    messages = [dict(role="system", content=system)] if system else []
    return messages + [dict(role=("user", "assistant")[i % 2], content=text) for i, text in enumerate(texts)]


def show(chats, *settings, code=0):
    """[(ids, marks)] of the training split, and what was said of it."""
    (folder / "chats.jsonl").write_text("".join(json.dumps(chat if isinstance(chat, dict) else dict(messages=chat)) + "\n" for chat in chats))
    done = run("data", "show", folder / "chat.yaml", "-n", 100, "--json", *[word for one in settings for word in ("--set", one)])
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return [(line["tokens"], line["trained"]) for line in map(json.loads, done.stdout.splitlines())], done.stderr


def thoughts(text):
    return f"<think>\nWhy {text}?\n</think>\n\n{text}"


with tempfile.TemporaryDirectory() as scratch:
    folder = pathlib.Path(scratch)
    os.environ["DSTRAIN_CACHE"] = str(folder / "cache")
    for name in ("qwen3", "llama3"):
        (folder / name).mkdir()
        (folder / name / "tokenizer.json").write_text(FAMILIES[name]["tokenizer"])
        (folder / name / "tokenizer_config.json").write_text(json.dumps(FAMILIES[name]["tokens"]))
    (folder / "qwen3/chat_template.jinja").write_text(TEMPLATES["qwen3"])
    (folder / "llama3/chat_template.jinja").write_text(TEMPLATES["llama3_2"])
    (folder / "chat.yaml").write_text(f"""
model:     {{ name: qwen2.5-0.5b, vocab_size: 400, width: 32, layers: 2, heads: 4, kv_heads: 2, mlp_width: 64 }}
data:      {{ name: chat, path: {folder}/chats.jsonl, tokenizer: {folder}/qwen3, sequence: 512, loss: assistant, test_share: 0 }}
batch:     {{ global: 2, micro: 2 }}
precision: {{ compute: fp32 }}
parallel:  {{ backend: gloo }}
optimizer: {{ name: adamw, lr: 1e-3 }}
run:       {{ epochs: 0, steps: 1, evaluate: never, output: {folder}/runs, checkpoint: {{ every: 1 }} }}
""")

    # A sample of each answer is that of the chat up to it: thoughts stay in the turn that is trained.
    long = turns("a", thoughts("b"), "c", thoughts("d"), "e", thoughts("f"), system="Think.")
    skipped = [dict(message, weight=0) if i == 4 else message for i, message in enumerate(long)]
    parts = [long[:3], long[:5], long]
    wanted, _ = show(parts, "data.loss=response")
    assert show([long], "data.split_turns=true")[0] == wanted
    assert show([skipped, long], "data.split_turns=true")[0] == [wanted[0], wanted[2], *wanted]
    whole, _ = show([long])
    assert len(whole) == 1 and len(whole[0][0]) < sum(len(ids) for ids, _ in wanted)
    done = run("recipe", "check", folder / "chat.yaml", "--set", "data.split_turns=true", "--set", "data.loss=all")
    assert done.returncode == 64 and "data.split_turns" in done.stderr and "use data.loss: assistant" in done.stderr, done.stderr
    many = turns(*["a", "b"] * 300)
    _, told = show([many, long], "data.split_turns=true")
    assert "1 left out" in told and "300 answers; data.split_turns takes chats of 256" in told, told
    # Those of one chat are in one split.
    (folder / "chats.jsonl").write_text("".join(json.dumps(dict(messages=turns(f"q{n}", "b", "c", "d"))) + "\n" for n in range(40)))
    splits = [run("data", "show", folder / "chat.yaml", "-n", 100, "--split", split, "--set", "data.split_turns=true", "--set", "data.test_share=0.2",
                  "--set", "data.too_long=turns").stdout for split in ("train", "test")]
    records = [sorted(line.split(": ")[1] for line in text.splitlines() if line.startswith("--- ")) for text in splits]
    assert records[1] and all(text.count("record ") == 2 * len(set(found)) for text, found in zip(splits, records)), records
    assert not set(records[0]) & set(records[1]) and len(set(records[0]) | set(records[1])) == 40, records

    # What does not fit loses its oldest turns, the system message stays; what never fits is left out.
    plain = turns(*[f"{'question ' * 6}{n}" if n % 2 == 0 else f"answer {n}" for n in range(8)], system="Be short.")
    shorter = plain[:1] + plain[5:]
    [(fits, _)], _ = show([shorter])
    room = f"data.sequence={len(fits)}"
    found, told = show([plain, shorter], "data.too_long=turns", room)
    assert found == show([shorter, shorter])[0], found
    assert f"data: 1 chats are without their oldest turns, to fit data.sequence ({len(fits)}); first" in told and "record 1" in told, told
    found, told = show([turns("1 2 3 " * 300, "y"), shorter], "data.too_long=turns", room)
    assert len(found) == 1 and "1 left out" in told and f"data.sequence is {len(fits)}" in told, told
    found, _ = show([plain], "data.too_long=turns", "data.split_turns=true", room)
    assert len(found) == 4 and found[-1][0] == fits and sum(found[-1][1]) < sum(show([shorter])[0][0][1]), found
    assert show([plain], "data.too_long=turns", f"data.sequence={len(fits) - 1}")[0] != show([plain], "data.too_long=turns", room)[0]
    done = run("recipe", "check", folder / "chat.yaml", "--set", "data.name=jsonl", "--set", "data.prompt={a}", "--set", "data.response={b}",
               "--set", "data.too_long=turns", "--set", "data.loss=response")
    assert done.returncode == 64 and "only data.name: chat has turns" in done.stderr, done.stderr

    # The day of a template that asks for it.
    def text_of(*settings):
        return expect_success(run("data", "show", folder / "chat.yaml", "-n", 1, "--set", f"data.tokenizer={folder}/llama3",
                                  *[word for one in settings for word in ("--set", one)]))

    assert "Today Date: 26 Jul 2024" in text_of(), text_of()
    for day in ("02 Jan 2025", "2 Jan 2025", "2025-01-02"):
        assert "Today Date: 02 Jan 2025" in text_of(f"data.chat_date={day}")
    assert "Today Date: 3 Mar" in text_of("data.chat_date=2025-01-02", "data.template_args=[date_string=3 Mar]")
    for day, what in (("31 Feb 2025", "'31 Feb 2025' is no day"), ("soon", "'soon' is no day"), ("today", "tokens would change from day to day")):
        done = run("recipe", "check", folder / "chat.yaml", "--set", f"data.chat_date={day}")
        assert done.returncode == 64 and what in done.stderr and "26 Jul 2024" in done.stderr, done.stderr

    # A run is asked in the form that it was trained in, whatever the tokenizer has.
    (folder / "qwen3/chat_template.jinja").unlink()
    show([turns("a", "b")] * 4, "data.template=chatml")
    expect_success(run("launch", folder / "chat.yaml", "--ranks", 1, "--run-name", "own", "--set", "data.template=chatml"))
    for words in ([], ["--template", "chatml"]):
        found = run("generate", folder / "runs/own", "--cpu", "--prompt", "a", "--tokens", 8, *words)
        assert found.returncode == 0 and found.stdout == run("generate", folder / "runs/own", "--cpu", "--tokens", 8, "--raw", "--prompt",
                                                             "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n").stdout, found
    (folder / "loud.jinja").write_text("{{ shout }}{% for message in messages %}{{ message.content }}{% endfor %}")
    found = run("generate", folder / "runs/own", "--cpu", "--prompt", "a", "--tokens", 8, "--template", folder / "loud.jinja", "--template-arg", "shout=HO")
    assert found.returncode == 0 and found.stdout == run("generate", folder / "runs/own", "--cpu", "--tokens", 8, "--raw", "--prompt", "HOa").stdout, found
    done = run("generate", folder / "runs/own", "--cpu", "--prompt", "a", "--raw", "--template", "chatml")
    assert done.returncode == 64 and "--raw takes prompts as they are" in done.stderr, done.stderr
print("chat_turns: ok")
