"""Adapters beside PEFT, by the commands: adapters that PEFT wrote answer and evaluate as in PEFT, those of dstrain's runs answer in PEFT as
in dstrain, and what is not supported is named. Leaves with 77 where peft is not installed. (Steps and logits: test/models/hf_peft.py.)"""
import copy
import json
import math
import os
import pathlib
import subprocess
import tempfile

from support import DSTRAIN, expect_success, run
from hf_models import FAMILIES, answers_of_transformers, make_texts, write_model

try:
    import torch
    from peft import LoraConfig, PeftModel, get_peft_model
    from peft.optimizers import create_loraplus_optimizer
    from transformers import AutoModelForCausalLM, AutoTokenizer
except ImportError as missing:
    print(f"skipped: {missing}")
    raise SystemExit(77)

TOKENS = 24
GOLDEN = pathlib.Path("test/golden/nf4")
ATTENTION = ["q_proj", "v_proj"]
# name: family, what LoraConfig gets
ADAPTERS = {
    "plain": ("llama", dict(target_modules=ATTENTION)),
    "rslora": ("qwen2", dict(target_modules=ATTENTION, use_rslora=True)),
    "all-linear": ("qwen3", dict(target_modules="all-linear")),
    "all-linear of bloom": ("bloom", dict(target_modules="all-linear", use_rslora=True)),
    "conv1d": ("gpt2", dict(target_modules=["c_attn", "mlp.c_proj"])),
    "all-linear of gpt2": ("gpt2", dict(target_modules="all-linear", modules_to_save=["wpe"])),
    "one layer": ("qwen2", dict(target_modules=ATTENTION, layers_to_transform=[1])),
    "expression": ("llama", dict(target_modules=r".*\.(0|2)\.mlp\.(up|down)_proj")),
    "but one": ("qwen2", dict(target_modules=ATTENTION, exclude_modules=r".*layers\.0\..*")),
    "head": ("qwen3", dict(target_modules=ATTENTION, modules_to_save=["lm_head", "norm"])),
}


def generate(*words, code=0):
    done = subprocess.run([DSTRAIN, "generate", *map(str, words)], capture_output=True, text=True, timeout=200)
    assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()] if code == 0 else done.stderr


def answers_of(*words):
    return [(line["answer"], line["tokens"], line["ended"]) for line in generate(*words, "--prompts", file, "--raw", "--tokens", TOKENS)]


def base_of(family):
    return AutoModelForCausalLM.from_pretrained(scratch / family, attn_implementation="eager").eval()


def write_adapter(folder, family, options):
    """An adapter of random numbers, as PEFT saves it."""
    torch.manual_seed(5)
    model = get_peft_model(base_of(family), LoraConfig(r=4, lora_alpha=8, lora_dropout=0, **copy.deepcopy(options))).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    return model


def mean_loss(model, tokenizer, pairs):
    """Over the answers' tokens and the end token."""
    total = count = 0
    for question, answer in pairs:
        prompt = tokenizer(question, add_special_tokens=False).input_ids
        ids = prompt + tokenizer(answer, add_special_tokens=False).input_ids + [tokenizer.eos_token_id]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids])).logits[0, len(prompt) - 1:-1]
        total += torch.nn.functional.cross_entropy(logits, torch.tensor(ids[len(prompt):]), reduction="sum").item()
        count += len(ids) - len(prompt)
    return total / count


def recipe(name, family, lora, run):
    path = scratch / f"{name}.yaml"
    path.write_text(f"""
model:     {{ weights: {scratch / family} }}
lora:      {lora}
data:      {{ name: jsonl, path: {scratch}/pairs, tokenizer: {scratch / family}, prompt: "{{question}}", response: " {{answer}}", sequence: 64,
             loss: response, cache: {scratch}/cache }}
batch:     {{ global: 4, micro: 4 }}
optimizer: {{ name: adamw, lr: 0.02, weight_decay: 0, warmup_steps: 0 }}
precision: {{ compute: fp32 }}
parallel:  {{ backend: gloo }}
run:       {run}
""")
    return path


def refused(folder, change, *words):
    """The adapter of `folder`, its configuration changed."""
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, **change}))
    told = generate(scratch / "llama", "--adapter", folder, "--prompt", "a", code=65)
    assert all(word in told for word in words), (change, told)
    (folder / "adapter_config.json").write_text(json.dumps(config))


def losses_of_lora_plus(rows, ratio):
    """20 steps of PEFT on the model of test/golden/nf4, each on all rows."""
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(GOLDEN / "llama"), GOLDEN / "adapter", is_trainable=True).train()
    optimizer = create_loraplus_optimizer(model, torch.optim.AdamW, lr=1e-2, loraplus_lr_ratio=ratio, betas=(0.9, 0.999), eps=1e-8,
                                          loraplus_weight_decay=0.1)
    tokens, found = torch.tensor(rows), []
    for _ in range(20):
        optimizer.zero_grad()
        logits = model(input_ids=tokens).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    torch.set_num_threads(1)
    prompts = make_texts(5)
    file = scratch / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    (scratch / "pairs").mkdir()
    texts = make_texts(60)
    pairs = [(text, f" {text[::-1]}") for text in texts]
    for name, some in (("train", texts), ("test", texts[:7])):
        (scratch / f"pairs/{name}.jsonl").write_text("".join(json.dumps({"question": text, "answer": text[::-1]}) + "\n" for text in some))
    for family in ("llama", "qwen2", "qwen3", "bloom", "gpt2"):
        write_model(scratch / family, FAMILIES[family], qwen=family != "bloom")
    tokenizers = {family: AutoTokenizer.from_pretrained(scratch / family) for family in ("llama", "qwen2", "qwen3", "bloom", "gpt2")}

    # Adapters of PEFT answer as there.
    for name, (family, options) in ADAPTERS.items():
        folder, tokenizer = scratch / name, tokenizers[family]
        model = write_adapter(folder, family, options)
        wanted = answers_of_transformers(model, tokenizer, prompts, tokenizer.eos_token_id, TOKENS)
        plain = answers_of_transformers(base_of(family), tokenizer, prompts, tokenizer.eos_token_id, TOKENS)
        assert wanted != plain, f"{name}: the adapter changes no answer"
        found = answers_of(scratch / family, "--adapter", folder)
        assert found == wanted, (name, found, wanted)
    print(f"  {len(ADAPTERS)} adapters of PEFT answer as there", flush=True)

    # They are evaluated as there.
    for name, lora in (("rslora", "rslora: true, targets: [q_proj, v_proj]"), ("all-linear", "targets: [all-linear]")):
        family = ADAPTERS[name][0]
        path = recipe(f"evaluated-{name}", family, f"{{ rank: 4, alpha: 8, {lora}, weights: {scratch / name} }}",
                      f"{{ steps: 1, evaluate: never, output: {scratch}/runs }}")
        expect_success(run("evaluate", path, "--ranks", 1, "--set", f"run.output={scratch}/evaluated-{name}"))
        [figures] = [json.loads(found.read_text()) for found in (scratch / f"evaluated-{name}").rglob("evaluation.json")]
        loss = mean_loss(PeftModel.from_pretrained(base_of(family), scratch / name).eval(), tokenizers[family], pairs[:7])
        assert math.isclose(figures["loss"], loss, rel_tol=1e-5), (name, figures, loss)

    # B learns faster than A as in PEFT's LoRA+, on one rank and on two.
    known = json.loads((GOLDEN / "losses.json").read_text())
    path = scratch / "lora-plus.yaml"
    path.write_text(f"""
model:     {{ weights: {GOLDEN}/llama }}
lora:      {{ rank: 4, alpha: 8, targets: [all-linear], weights: {GOLDEN}/adapter, lr_ratio: 4 }}
data:      {{ name: jsonl, path: {GOLDEN}/train.jsonl, test_share: 0, response: "{{text}}", tokenizer: {GOLDEN}/llama, sequence: 32, cache: {scratch}/cache }}
batch:     {{ global: 2, micro: 1 }}
optimizer: {{ name: adamw, lr: 1.0e-2, betas: [0.9, 0.999], eps: 1.0e-8, weight_decay: 0.1, clip_norm: 0, schedule: constant, warmup_steps: 0 }}
precision: {{ compute: fp32 }}
parallel:  {{ backend: gloo }}
run:       {{ steps: 20, evaluate: never, output: {scratch}/runs, checkpoint: {{ every: never }} }}
""")
    wanted = losses_of_lora_plus(known["tokens"], 4)
    for ranks, stage in ((1, 0), (2, 3)):
        name = f"lora-plus-{ranks}"
        expect_success(run("launch", path, "--ranks", ranks, "--run-name", name, "--set", f"parallel.zero.stage={stage}"))
        rows = map(json.loads, (scratch / "runs" / name / "metrics.jsonl").read_text().splitlines())
        found = [row["loss"] for row in rows if "loss" in row]
        apart = max(abs(a - b) / b for a, b in zip(found, wanted, strict=True))
        assert apart < 1e-5 < max(abs(a - b) / b for a, b in zip(found, known["base"])), (ranks, apart, found, wanted)
    print(f"  LoRA+: losses within {apart:.2g} of PEFT's", flush=True)

    # Those of a run answer in PEFT as the run does.
    for name, family, lora in (("r-rslora", "qwen2", "rslora: true, targets: [all-linear]"), ("r-table", "llama", "also_train: [embed_tokens, model.norm]"),
                               ("r-gpt2", "gpt2", "targets: [c_attn, c_fc], also_train: [\"*.mlp.c_proj\", wpe]"),
                               ("r-head", "qwen3", "targets: [q_proj], also_train: [lm_head]")):
        path = recipe(name, family, f"{{ rank: 4, alpha: 16, {lora} }}",
                      f"{{ epochs: 0, steps: 6, evaluate: never, output: {scratch}/runs, checkpoint: {{ every: 6 }} }}")
        expect_success(run("launch", path, "--ranks", 1, "--run-name", name))
        expect_success(run("checkpoint", "export", scratch / "runs" / name, scratch / f"{name}-adapter"))
        model, tokenizer = PeftModel.from_pretrained(base_of(family), scratch / f"{name}-adapter").eval(), tokenizers[family]
        wanted = answers_of_transformers(model, tokenizer, prompts, tokenizer.eos_token_id, TOKENS)
        found = answers_of(scratch / "runs" / name)
        assert found == wanted, (name, found, wanted)
        assert answers_of(scratch / family, "--adapter", scratch / f"{name}-adapter") == wanted, name
        assert found != answers_of(scratch / family), f"{name}: training changed no answer"
        # The sum of logarithms says that logits are equal, too.
        ids = tokenizer(prompts[0], return_tensors="pt").input_ids
        made = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=8, eos_token_id=None,
                              pad_token_id=tokenizer.eos_token_id)
        scores = torch.log_softmax(model(input_ids=made).logits.float(), -1)[0, ids.shape[1] - 1:-1]
        [line] = generate(scratch / "runs" / name, "--prompts", file, "--raw", "--tokens", 8)[:1]
        assert line["tokens"] < 8 or abs(line["logprob"] - scores.gather(1, made[0, ids.shape[1]:, None]).sum().item()) < 1e-3, (name, line)
    print("  adapters of runs answer in PEFT as in dstrain", flush=True)

    # What is not supported is named.
    folder = scratch / "plain"
    refused(folder, {"use_dora": True}, "use_dora is true")
    refused(folder, {"rank_pattern": {"q_proj": 2}}, "rank_pattern is {\"q_proj\":2}")
    refused(folder, {"bias": "lora_only"}, "bias is \"lora_only\"")
    refused(folder, {"peft_type": "IA3"}, "peft_type is \"IA3\"")
    refused(folder, {"modules_to_save": ["score"]}, "modules_to_save", "'score'", "plain/adapter_config.json")
    # An adapter of another base: of other widths, of more layers, of another family.
    told = generate(scratch / "qwen3", "--adapter", folder, "--prompt", "a", code=65)
    assert "self_attn.q_proj.lora_B.weight' is [32, 4], the model needs [80, 4]" in told and "was made for" in told, told
    config = copy.deepcopy(FAMILIES["llama"])
    config.num_hidden_layers = 2
    write_model(scratch / "small", config, qwen=True)
    told = generate(scratch / "small", "--adapter", folder, "--prompt", "a", code=65)
    assert "layers.2.self_attn" in told and "was made for" in told, told
    told = generate(scratch / "bloom", "--adapter", folder, "--prompt", "a", code=65)
    assert "self_attn.q_proj'" in told and "was made for" in told, told
print("peft: ok")
