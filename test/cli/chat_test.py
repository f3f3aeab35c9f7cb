"""Chats: every form of record becomes the tokens and masks that transformers gives; what users write is never a special token; the loss of a
first step is that of transformers."""
import json
import os
import pathlib
import pty
import subprocess
import sys
import tempfile
import termios

from support import ROOT, expect_success, only_run, run
from text_files import write_tokenizer  # leaves with 77 without tokenizers

try:
    import torch
    import transformers
except ImportError as missing:
    print(f"chat: skipped: {missing}")
    sys.exit(77)

# Qwen2.5's form, and the same with marks.
TEMPLATE = """{%- if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nBe kind.<|im_end|>\\n' }}{%- endif %}
{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}{%- if message.role == 'assistant' %}
{%- generation %}{{ message.content + '<|im_end|>' }}{%- endgeneration %}{{ '\\n' }}
{%- else %}{{ message.content + '<|im_end|>\\n' }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}{%- if shout is defined %}{{ shout }}{%- endif %}"""
UNMARKED = TEMPLATE.replace("{%- generation %}", "").replace("{%- endgeneration %}", "")


def turns(*texts, system=None):
    messages = [dict(role="system", content=system)] if system else []
    return messages + [dict(role=("user", "assistant")[i % 2], content=text) for i, text in enumerate(texts)]


CHATS = [turns(f"What is {a} plus {a + 1}?", f"{a} + {a + 1} = {2 * a + 1}") for a in range(4)] + [
    turns("Hello", "Hi!\nHow can I help?", "\n\nSay  A", " A ", "and B", "B"), turns("One", "Two", system="Count."),
    turns("caf\u00e9 \U0001f600", "na\u00efve"), turns("x" * 50, "y" * 50)]


def show(recipe, *words, code=0):
    done = run("data", "show", recipe, "-n", 100, "--json", *words)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    os.environ["DSTRAIN_CACHE"] = str(folder / "cache")
    write_tokenizer(folder / "model", [m["content"] for chat in CHATS for m in chat], qwen=True)
    config = json.loads((folder / "model/tokenizer_config.json").read_text())
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "model/tokenizer.json"), **{
        key: value for key, value in config.items() if key != "tokenizer_class"})
    (folder / "model/chat_template.jinja").write_text(UNMARKED)
    (folder / "marked.jinja").write_text(TEMPLATE)
    torch.manual_seed(1)
    model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
        max_position_embeddings=256, tie_word_embeddings=True))
    model.save_pretrained(folder / "model")
    recipe = folder / "chat.yaml"
    recipe.write_text(f"""
model:     {{ weights: {folder}/model }}
data:      {{ name: chat, path: {folder}/chats.jsonl, sequence: 128, loss: assistant, test_share: 0 }}
batch:     {{ global: {len(CHATS)}, micro: 2 }}
precision: {{ compute: fp32 }}
parallel:  {{ backend: gloo }}
optimizer: {{ name: adamw, lr: 1e-3 }}
run:       {{ steps: 2, evaluate: never, output: {folder}/runs }}
""")
    jsonl = "".join(json.dumps(dict(messages=chat)) + "\n" for chat in CHATS)
    (folder / "chats.jsonl").write_text("\n" + jsonl)

    # Ids and masks of transformers.
    expected = [tokenizer.apply_chat_template(chat, chat_template=TEMPLATE, return_dict=True, return_assistant_tokens_mask=True) for chat in CHATS]
    wanted = [(one["input_ids"], one["assistant_masks"]) for one in expected]
    for words in ([], ["--set", f"data.template={folder}/marked.jinja"]):
        ours, _ = show(recipe, *words)
        assert [(one["tokens"], one["trained"]) for one in ours] == wanted, (words, ours[0], wanted[0])
    last, _ = show(recipe, "--set", "data.loss=response")
    everything, _ = show(recipe, "--set", "data.loss=all")
    for (ids, mask), one, two in zip(wanted, last, everything):
        begin = len(mask) - mask[::-1].index(1)  # behind the last answer
        while begin and mask[begin - 1]:
            begin -= 1
        assert one["trained"] == [int(i >= begin and m) for i, m in enumerate(mask)], one
        assert two["trained"] == [0] + [1] * (len(ids) - 1), two

    # Every form of record.
    names = {"system": "system", "user": "human", "assistant": "gpt"}
    (folder / "share.json").write_text(json.dumps([dict(conversations=[{"from": names[m["role"]], "value": m["content"]} for m in chat])
                                                   for chat in CHATS], indent=1))
    pairs = [chat for chat in CHATS if len(chat) == 2]
    (folder / "alpaca.json").write_text(json.dumps([dict(instruction=q["content"], input="", output=a["content"]) for q, a in pairs]))
    (folder / "lists.jsonl").write_text("".join(json.dumps(dict(prompt=chat[:-1], completion=chat[-1:])) + "\n" for chat in CHATS))
    assert [(one["tokens"], one["trained"]) for one in show(recipe, "--set", f"data.path={folder}/share.json")[0]] == wanted
    assert [(one["tokens"], one["trained"]) for one in show(recipe, "--set", f"data.path={folder}/alpaca.json")[0]] == \
        [one for one, chat in zip(wanted, CHATS) if len(chat) == 2]
    assert [one["tokens"] for one in show(recipe, "--set", f"data.path={folder}/lists.jsonl")[0]] == [ids for ids, _ in wanted]
    try:
        import pyarrow
        import pyarrow.parquet
        (folder / "set/data").mkdir(parents=True)
        table = pyarrow.table({"prompt_id": list(range(len(CHATS))), "messages": CHATS})
        pyarrow.parquet.write_table(table, folder / "set/data/train_sft-00000-of-00001.parquet")
        pyarrow.parquet.write_table(table.slice(0, 2), folder / "set/data/test_sft-00000-of-00001.parquet")
        assert [(one["tokens"], one["trained"]) for one in show(recipe, "--set", f"data.path={folder}/set")[0]] == wanted
        assert len(show(recipe, "--set", f"data.path={folder}/set", "--split", "test")[0]) == 2
    except ImportError:
        print("chat: parquet not tried, no pyarrow")

    # Text pairs have no template; arguments reach one; a template of one's own.
    (folder / "pairs.jsonl").write_text(json.dumps(dict(prompt="Q: 1?", completion=" 2")) + "\n")
    ours, _ = show(recipe, "--set", f"data.path={folder}/pairs.jsonl")
    ids = tokenizer.encode("Q: 1?", add_special_tokens=False), tokenizer.encode(" 2", add_special_tokens=False)
    assert ours[0]["tokens"] == ids[0] + ids[1] + [tokenizer.eos_token_id] and sum(ours[0]["trained"]) == len(ids[1]) + 1, ours
    loud, _ = show(recipe, "--set", "data.template_args=[shout=HO]")
    assert loud[0]["tokens"] != wanted[0][0] and tokenizer.decode(loud[0]["tokens"]).endswith("HO"), loud[0]

    # What a user writes stays text; both are counted and named. Records that cannot be used, too.
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    bad = [dict(messages=turns("I say <|im_end|>", "fine")), dict(messages=turns("alone")), dict(text="x"), [1],
           dict(messages=[dict(role="judge", content="x")])]
    (folder / "bad.jsonl").write_text("".join(json.dumps(one) + "\n" for one in bad) + "{\n")
    ours, told = show(recipe, "--set", f"data.path={folder}/bad.jsonl")
    assert len(ours) == 1 and ours[0]["tokens"].count(end) == 3, ours
    assert tokenizer.decode(ours[0]["tokens"]).count("<|im_end|>") == 4
    assert "1 records have special tokens of the model in what messages say" in told and "record 1" in told, told
    assert "5 left out: first at" in told and "record 2: no answer of it is trained" in told, told
    done = run("data", "show", recipe, "--set", f"data.path={folder}/bad.jsonl", "--set", "data.bad_record=stop")
    assert done.returncode == 65 and "no answer of it is trained" in done.stderr, done.stderr
    text = expect_success(run("data", "show", recipe, "-n", 1))
    assert "<|im_start|>assistant\n[[0 + 1 = 1<|im_end|>]]" in text, text

    # Mistakes of a recipe.
    (folder / "broken.jinja").write_text("{% for x in %}")
    for setting, what in ((f"data.template={folder}/broken.jinja", "broken.jinja"), ("data.template_args=[x]", "'x' is no NAME=VALUE"),
                          ("data.template=nowhere.jinja", "nowhere.jinja")):
        done = run("data", "show", recipe, "--set", setting)
        assert done.returncode in (64, 65, 66) and what in done.stderr, (done.returncode, done.stderr)
    (folder / "model/chat_template.jinja").unlink()
    done = run("data", "show", recipe)
    assert done.returncode == 64 and "has no chat template" in done.stderr and "chatml" in done.stderr, done.stderr
    chatml, _ = show(recipe, "--set", "data.template=chatml")
    assert tokenizer.decode(chatml[0]["tokens"]).startswith("<|im_start|>user\nWhat is 0"), chatml[0]
    (folder / "model/chat_template.jinja").write_text(UNMARKED)

    # The loss of the first step, over all answers, and packed.
    losses = count = 0
    for ids, mask in wanted:
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, :-1]
        labels = torch.tensor(ids[1:])
        each = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
        losses += float((each * torch.tensor(mask[1:])).sum())
        count += sum(mask[1:])
    rows = json.loads(run("data", "prepare", recipe, "--json", "--set", "data.sequence=256").stdout)["train"]["packed_rows"]
    assert 1 < rows < len(CHATS), rows
    packed = ["--set", "data.packing=true", "--set", f"batch.global={rows}", "--set", "batch.micro=1", "--set", "data.sequence=256"]
    for words, ranks in (([], 2), (packed, 1)):
        text = expect_success(run("launch", recipe, "--ranks", ranks, *words, "--set", f"run.output={folder}/runs{ranks}"))
        assert " % of the tokens are trained" in text, text
        metrics = [json.loads(line) for line in (only_run(folder / f"runs{ranks}") / "metrics.jsonl").read_text().splitlines()]
        first = next(one for one in metrics if "loss" in one)
        assert abs(first["loss"] - losses / count) < 1e-5 * losses / count, (words, first, losses / count, count)

    # An export stops where the chats do, and its template is that of the run.
    export = ["--set", "run.checkpoint.every=2", "--set", f"data.template={folder}/marked.jinja", "--set", f"run.output={folder}/runs0"]
    expect_success(run("launch", recipe, "--ranks", 1, *export))
    expect_success(run("checkpoint", "export", only_run(folder / "runs0"), folder / "exported"))
    ends = json.loads((folder / "exported/generation_config.json").read_text())["eos_token_id"]
    assert set(ends) == {end, tokenizer.eos_token_id}, ends
    assert (folder / "exported/chat_template.jinja").read_text() == TEMPLATE
    transformers.AutoModelForCausalLM.from_pretrained(folder / "exported")
    # The test split is asked and scored, of chats and of records with several right answers.
    def asked(*words):
        done = run("generate", only_run(folder / "runs0"), "--cpu", "--tokens", 8, "-o", folder / "asked.jsonl", *words)
        assert done.returncode == 0, done.stderr
        lines = [json.loads(line) for line in (folder / "asked.jsonl").read_text().splitlines()]
        mean = [100 * sum(one[key] for one in lines) / len(lines) for key in ("exact_match", "f1")]
        assert f"exact match {mean[0]:.2f}%, F1 {mean[1]:.2f}% of {len(lines)} answers" in done.stderr, (mean, done.stderr)
        return lines
    lines = asked("--data", recipe, "--set", "data.test_share=0.3", "--test", 0)
    questions = {tokenizer.apply_chat_template(chat[:-1], tokenize=False, add_generation_prompt=True, chat_template=UNMARKED): chat[-1]["content"]
                 for chat in CHATS}
    assert 1 <= len(lines) < len(CHATS) and all(questions[one["prompt"]] == one["expected"][0] for one in lines), lines
    (folder / "squad").mkdir()
    entry = dict(context="The Broncos won.", qas=[
        dict(id="1", question="Who won?", answers=[dict(text="The Broncos", answer_start=0), dict(text="Broncos", answer_start=4)]),
        dict(id="2", question="Who lost?", is_impossible=True, answers=[])])
    for name in ("train", "dev"):
        (folder / f"squad/{name}-v2.0.json").write_text(json.dumps(dict(data=[dict(title="x", paragraphs=[entry])])))
    lines = asked("--data", recipe, "--set", "data.name=squad", "--set", f"data.path={folder}/squad", "--set", "data.loss=response", "--test", 2)
    assert [one["expected"] for one in lines] == [["The Broncos", "Broncos"], [""]], lines
    assert lines[0]["prompt"] == "Question: Who won? Context: The Broncos won. Answer:", lines
    done = run("generate", folder / "exported", "--cpu", "--test", 1)
    assert done.returncode == 64 and "--data RECIPE" in done.stderr, done.stderr
    # A chat at a terminal.
    def terminal(*words):
        ours, theirs = pty.openpty()
        settings = termios.tcgetattr(theirs)
        settings[3] &= ~termios.ECHO
        termios.tcsetattr(theirs, termios.TCSANOW, settings)
        process = subprocess.Popen([os.environ["DSTRAIN"], "generate", folder / "exported", "--cpu", "--tokens", "12", "-i"], cwd=ROOT, stdin=theirs,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=os.setsid)
        os.close(theirs)
        for word in words:
            os.write(ours, word.encode() + b"\n")
        os.write(ours, b"\x04")
        out, told = process.communicate(timeout=120)
        os.close(ours)
        assert process.returncode == 0, (out, told)
        return out, told
    out, told = terminal("Hello", "again", f"/save {folder}/one.json", "/reset", "/system Count.", "/set temperature 0.7", "/set top-p 2", "/what", "One",
                         f"/save {folder}/two.json")
    assert told.count("/reset             forget") == 1 and "'2' is no number from 1e-06 to 1" in told, told
    first, second = (json.loads((folder / name).read_text())["messages"] for name in ("one.json", "two.json"))
    assert [m["role"] for m in first] == ["user", "assistant"] * 2 and first[2]["content"] == "again", first
    assert [m["role"] for m in second] == ["system", "user", "assistant"] and second[0]["content"] == "Count.", second
    assert all(m["content"] in out for m in first if m["role"] == "assistant" and m["content"].isprintable()), (first, out)
    alone = run("generate", folder / "exported", "--cpu", "--tokens", 12, "--prompt", "Hello")
    assert alone.returncode == 0 and alone.stdout.rstrip("\n") == first[1]["content"].rstrip("\n"), (alone.stdout, first)
    (folder / "again.jsonl").write_text((folder / "one.json").read_text())
    assert len(show(recipe, "--set", f"data.path={folder}/again.jsonl")[0]) == 1
    for words, what in ((["-i", "-o", folder / "x"], "-i has no -o"), (["--prompt", "a", "--data", recipe], "add --test N"),
                        (["--test", 1, "--set", "data.sequence=9"], "add --data RECIPE")):
        done = run("generate", folder / "exported", "--cpu", *words)
        assert done.returncode == 64 and what in done.stderr and not (folder / "x").exists(), done.stderr
    done = run("generate", folder / "exported", "--cpu", "-i")
    assert done.returncode == 64 and "no terminal" in done.stderr, done.stderr
    print("chat: ok")
