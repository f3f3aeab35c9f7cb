"""`dstrain generate` against generate() of transformers: the same greedy answers of every family in fp32, at any batch; prompts of files,
ends of answers, samples, adapters, runs; and what it refuses. Leaves with 77 where transformers is not installed."""
import json
import os
import pathlib
import re
import subprocess
import tempfile

from support import DSTRAIN
from hf_models import FAMILIES, answers_of_transformers, make_texts, write_model
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

TOKENS = 64


def run(*words, code=0, where=None):
    done = subprocess.run([DSTRAIN, "generate", *map(str, words)], capture_output=True, text=True, timeout=200, cwd=where,
                          env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
    return done.stdout if code == 0 else done.stderr


def printed(text):
    """As a terminal gets it: what could drive it is written out."""
    return re.sub(r"[\x00-\x09\x0b-\x1f\x7f]", lambda found: f"\\x{ord(found[0]):02x}", text)


def lines_of(text):
    return [json.loads(line) for line in text.splitlines()]


with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    prompts = make_texts(7)
    file = scratch / "prompts.jsonl"
    file.write_text("".join(json.dumps({"id": f"p{i}", "prompt": prompt}) + "\n" for i, prompt in enumerate(prompts)))
    for name, config in FAMILIES.items():
        folder = scratch / name
        model = write_model(folder, config, qwen=not name.startswith("bloom"))
        tokenizer = AutoTokenizer.from_pretrained(folder)
        wanted = answers_of_transformers(model, tokenizer, prompts, tokenizer.eos_token_id, TOKENS)
        for how in ((), ("--batch", 3), ("--ranks", 3, "--batch", 2)) if name in ("bloom6", "qwen2") else ((),):
            lines = lines_of(run(folder, "--prompts", file, "--raw", "--tokens", TOKENS, *how))
            assert [line["id"] for line in lines] == [f"p{i}" for i in range(7)] and [line["prompt"] for line in lines] == prompts
            found = [(line["answer"], line["tokens"], line["ended"]) for line in lines]
            assert found == wanted, (name, how, found, wanted)
        print(f"  {name}: {sum(count for _, count, _ in wanted)} tokens equal", flush=True)

    folder = scratch / "qwen2"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    end = tokenizer.eos_token_id
    # A penalty, as transformers has it.
    wanted = answers_of_transformers(model, tokenizer, prompts, end, TOKENS, repetition_penalty=1.3)
    found = lines_of(run(folder, "--prompts", file, "--raw", "--tokens", TOKENS, "--repetition-penalty", 1.3))
    assert [(line["answer"], line["tokens"], line["ended"]) for line in found] == wanted, (found, wanted)

    # The sum of the chosen tokens' log-probabilities.
    ids = tokenizer(prompts[0], return_tensors="pt").input_ids
    made = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=8, eos_token_id=end, pad_token_id=end)
    scores = torch.log_softmax(model(made).logits.float(), -1)[0, ids.shape[1] - 1:-1]
    [line] = lines_of(run(folder, "--prompts", file, "--raw", "--tokens", 8))[:1]
    wanted = scores.gather(1, made[0, ids.shape[1]:, None]).sum().item()
    assert abs(line["logprob"] - wanted) < 1e-3, (line, wanted)

    # One prompt is answered as text; a stop text is no part of the answer.
    plain = run(folder, "--prompt", prompts[0], "--raw", "--tokens", 40)
    whole = answers_of_transformers(model, tokenizer, prompts[:1], end, 40)[0][0]
    assert plain == printed(whole) + "\n", (plain, whole)
    stop = re.findall("[a-z ]{2,}", whole)[-1]
    assert run(folder, "--prompt", prompts[0], "--raw", "--tokens", 40, "--stop", stop) == printed(whole[:whole.find(stop)]) + "\n"

    # End tokens: those of generation_config.json, a list, too.
    second = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=2, eos_token_id=None, pad_token_id=end)[0, -1].item()
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [end, second]}))
    [line] = lines_of(run(folder, "--prompts", file, "--raw"))[:1]
    assert (line["tokens"], line["ended"]) == (2, "stop"), line
    (folder / "generation_config.json").unlink()

    # Samples follow from seed, prompt and number alone; another seed gives others.
    sampled = ("--prompts", file, "--raw", "--tokens", 12, "--temperature", 1, "--top-k", 50, "--top-p", 0.95, "--samples", 3)

    def sampled_texts(*more):
        return {(line["id"], line["sample"]): line["answer"] for line in lines_of(run(folder, *sampled, *more))}

    texts = sampled_texts("--seed", 5)
    assert texts == sampled_texts("--seed", 5, "--batch", 2), "another batch gives other answers"
    assert texts == sampled_texts("--seed", 5, "--ranks", 2), "more ranks give other answers"
    assert texts != sampled_texts("--seed", 6)
    assert len(texts) == 21 and len({texts["p0", i] for i in range(3)}) > 1, texts

    # A prompt longer than the model is answered by nothing, in words; one that nearly fills it by what has room.
    (scratch / "long.txt").write_text("the cat " * 600 + "\n" + "\n".join(prompts[:2]) + "\n")
    lines = lines_of(run(folder, "--prompts", scratch / "long.txt", "--raw", "--tokens", 4))
    assert [(line["ended"], line["tokens"] > 0) for line in lines] == [("room", False), ("length", True), ("length", True)], lines
    assert [line["id"] for line in lines] == [1, 2, 3]

    # Chats: the template's form, and the token that closes a turn ends the answer.
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = ("{% for message in messages %}{% if loop.first and messages[0].role != 'system' %}<|im_start|>system\n"
                               "You are a helpful assistant.<|im_end|>\n{% endif %}<|im_start|>{{ message.role }}\n{{ message.content }}"
                               "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    chat = AutoTokenizer.from_pretrained(folder).apply_chat_template([{"role": "user", "content": prompts[0]}], tokenize=False,
                                                                    add_generation_prompt=True)
    assert run(folder, "--prompt", prompts[0], "--tokens", 20) == run(folder, "--prompt", chat, "--raw", "--tokens", 20)
    chat = chat.replace("You are a helpful assistant.", "Be short.")
    assert run(folder, "--prompt", prompts[0], "--tokens", 20, "--system", "Be short.") == run(folder, "--prompt", chat, "--raw", "--tokens", 20)

    # Messages of a file are rendered by the template, whichever form they have; in a file of transformers 5 it stands by itself.
    template = config.pop("chat_template")
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(template)
    turns = [{"role": "system", "content": "Be short."}, {"role": "user", "content": prompts[1]}, {"role": "assistant", "content": "Yes."},
             {"role": "user", "content": prompts[2]}]
    chat = AutoTokenizer.from_pretrained(folder).apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    names = {"system": "system", "user": "human", "assistant": "gpt"}
    (scratch / "chats.jsonl").write_text(json.dumps({"messages": turns}) + "\n" + json.dumps(
        {"conversations": [{"from": names[turn["role"]], "value": turn["content"]} for turn in turns]}) + "\n")
    (scratch / "raw.jsonl").write_text(json.dumps({"prompt": chat}) + "\n")
    [wanted] = lines_of(run(folder, "--prompts", scratch / "raw.jsonl", "--raw", "--tokens", 20))
    found = lines_of(run(folder, "--prompts", scratch / "chats.jsonl", "--tokens", 20))
    assert [(line["answer"], line["ended"]) for line in found] == [(wanted["answer"], wanted["ended"])] * 2, (found, wanted)
    assert "is a chat" in run(folder, "--prompts", scratch / "chats.jsonl", "--raw", code=65)
    # So are lists of messages as prompts, and one list of all; a chat that ends with an answer is noted.
    (scratch / "list.json").write_text(json.dumps([{"id": "x", "prompt": turns}, {"messages": turns[:3]}], indent=1))
    done = subprocess.run([DSTRAIN, "generate", folder, "--prompts", scratch / "list.json", "--tokens", "20", "--cpu"], capture_output=True, text=True)
    found = lines_of(done.stdout)
    assert [line["id"] for line in found] == ["x", 2] and found[0]["answer"] == wanted["answer"], found
    assert "1 of 2 chats end with an answer, to which the model adds one more; first 2" in done.stderr, done.stderr
    (scratch / "spread.jsonl").write_text(json.dumps({"messages": turns}, indent=1))
    assert "each in one line, or a list of them" in run(folder, "--prompts", scratch / "spread.jsonl", code=65)
    (scratch / "bad.jsonl").write_text('{"messages": [{"role": "wizard", "content": "a"}]}\n')
    (folder / "chat_template.jinja").write_text("{% if messages|length > 1 %}{{ raise_exception('too long') }}{% endif %}")
    told = run(folder, "--prompts", scratch / "list.json", code=65)
    assert 'prompt "x": ' in told and "the template refuses the chat: too long" in told and "--raw takes prompts as they are" in told, told
    assert "bad.jsonl:1: " in run(folder, "--prompts", scratch / "bad.jsonl", code=65)
    (folder / "chat_template.jinja").write_text("{% for message in messages %}{{ message.content }}")
    assert "chat template" in run(folder, "--prompt", "a", code=65)
    run(folder, "--prompt", "a", "--raw", "--tokens", 2)
    (folder / "chat_template.jinja").unlink()

    # A run with adapters, its adapter on the base, and both merged answer the same.
    base = scratch / "llama"
    (scratch / "pairs.jsonl").write_text("".join(json.dumps({"question": text, "answer": text[::-1]}) + "\n" for text in make_texts(60)))
    (scratch / "tuned.yaml").write_text(f"""
model:     {{ weights: {base} }}
lora:      {{ rank: 4, alpha: 16, targets: [q_proj, v_proj] }}
data:      {{ name: jsonl, path: {scratch}/pairs.jsonl, tokenizer: {base}, prompt: "{{question}}", response: " {{answer}}", sequence: 64, test_share: 0.1,
             cache: {scratch}/cache }}
batch:     {{ global: 4, micro: 4 }}
optimizer: {{ name: adamw, lr: 0.05, weight_decay: 0, warmup_steps: 0 }}
precision: {{ compute: fp32 }}
parallel:  {{ backend: gloo }}
run:       {{ epochs: 0, steps: 6, evaluate: never, output: {scratch}/runs, checkpoint: {{ every: 6 }} }}
""")
    done = subprocess.run([DSTRAIN, "launch", scratch / "tuned.yaml", "--ranks", "1", "--run-name", "tuned"], capture_output=True, text=True,
                          timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    tuned = scratch / "runs/tuned"
    for words in (("adapter",), ("merged", "--merge")):
        subprocess.run([DSTRAIN, "checkpoint", "export", tuned, scratch / words[0], *words[1:]], check=True, capture_output=True)

    def answers(*words):
        return [line["answer"] for line in lines_of(run(*words, "--prompts", file, "--raw", "--tokens", 12))]

    wanted = answers(tuned)
    assert wanted != answers(base), "training changed no answer"
    assert answers(base, "--adapter", scratch / "adapter") == wanted
    assert answers(scratch / "merged", "--tokenizer", base) == wanted
    assert "is an adapter" in run(scratch / "adapter", "--prompt", "a", code=64)
    assert "has its own adapters" in run(tuned, "--adapter", scratch / "adapter", "--prompt", "a", code=64)

    # What is refused.
    for words, expected in {
        (folder,): "no prompt",
        (folder, "--prompt", "a", "--prompts", file): "exclude each other",
        (folder, "--prompt", "a", "--top-k", "5"): "--temperature 0 takes the most likely",
        (folder, "--prompt", "", "--raw"): "has no token",
        (folder, "--prompt", "a", "--stop", ""): "end every answer at once",
        (scratch / "nothing", "--prompt", "a"): "nothing",
        (scratch, "--prompt", "a"): "checkpoint",
        (folder, "--prompt", "a", "--adapter", folder): "adapter_config.json",
        (folder, "--prompt", "a", "--ema"): "no average",
        (folder, "--prompt", "a", "-o", scratch / "no/such/file"): "in a folder that is there",
    }.items():
        done = subprocess.run([DSTRAIN, "generate", *map(str, words)], capture_output=True, text=True, timeout=100)
        assert done.returncode not in (0, -6, -11) and expected in done.stderr, (words, done.returncode, done.stderr)
    (scratch / "broken.jsonl").write_text('{"prompt": "a"}\n{"promt": "b"}\n')
    assert "broken.jsonl:2: no prompt" in run(folder, "--prompts", scratch / "broken.jsonl", code=65)
print("generate: ok")
