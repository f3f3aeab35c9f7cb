"""dstrain's language models against those of transformers on files that save_pretrained wrote: logits, loss and every gradient in fp32 and bf16, greedy next tokens, the losses of AdamW steps, and the same
logits from what dstrain exports.

usage: hf_lm.py LM_PROBE; exit code 77 where transformers is not installed."""

import copy
import json
import os
import sys
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import (AutoModelForCausalLM, BloomConfig, Gemma2Config, Gemma3TextConfig, GPT2Config, GPTNeoXConfig, LlamaConfig, MistralConfig, Olmo2Config,
                              Phi3Config, Qwen2Config, Qwen3Config)
    from transformers.pytorch_utils import Conv1D
except ImportError as error:
    print(f"skipped: this python has no transformers ({error}); scripts/test installs it")
    sys.exit(77)

from probes import Probe

TOLERANCE = 1e-5  # of the largest value of a tensor, our fp32 against transformers in double
LOSS_TOLERANCE = 2e-5  # relative, of the losses of AdamW steps in fp32
STEPS, BATCH, TOKENS = 10, 3, 13
# A larger eps than usual: a gradient that is zero but for rounding would be a whole step.
LR, BETAS, EPS, WEIGHT_DECAY = 2e-3, (0.9, 0.95), 1e-6, 0.1

QWEN2 = dict(hidden_size=32, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48,
             vocab_size=67)
LLAMA3 = dict(rope_type="llama3", rope_theta=100.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16)  # short, so that the positions of our few tokens differ
LONGROPE = dict(rope_type="longrope", rope_theta=100.0, short_factor=[1.0, 1.1], long_factor=[1.3, 5.0])
# No row of the table goes without its gradient, as that of pad_token_id does in transformers.
PHI3 = dict(QWEN2, pad_token_id=None, bos_token_id=0, eos_token_id=0)
NEOX = dict(hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48, vocab_size=67, attention_dropout=0.0)
GEMMA = dict(PHI3, head_dim=12, query_pre_attn_scalar=20)
LOCAL, WHOLE = "sliding_attention", "full_attention"
TWO_ROPES = {WHOLE: dict(rope_type="linear", rope_theta=1000.0, factor=4.0), LOCAL: dict(rope_type="default", rope_theta=50.0)}
GPT2 = dict(n_embd=32, n_layer=3, n_head=4, vocab_size=67, n_positions=24, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0)
CASES = {
    "bloom, 4 heads": BloomConfig(hidden_size=32, n_layer=3, n_head=4, vocab_size=67),
    "bloom, 6 heads": BloomConfig(hidden_size=48, n_layer=2, n_head=6, vocab_size=101, layer_norm_epsilon=1e-6),
    "gpt_neox": GPTNeoXConfig(**NEOX, rotary_emb_base=100.0),
    "gpt_neox, one behind the other": GPTNeoXConfig(**NEOX, use_parallel_residual=False, rotary_pct=1.0, hidden_act="gelu_fast", tie_word_embeddings=True),
    "gpt_neox, no bias": GPTNeoXConfig(**NEOX, attention_bias=False, rotary_pct=0.5, layer_norm_eps=1e-6),
    "gpt2": GPT2Config(**GPT2),
    "gpt2, other scores": GPT2Config(**GPT2, n_inner=48, scale_attn_weights=False, scale_attn_by_inverse_layer_idx=True,
                                     tie_word_embeddings=False),
    "gpt2, 6 heads": GPT2Config(**GPT2 | dict(n_embd=48, n_head=6, n_positions=13), activation_function="gelu", layer_norm_epsilon=1e-6),
    "qwen2, tied": Qwen2Config(**QWEN2, tie_word_embeddings=True),
    "qwen2, untied": Qwen2Config(**QWEN2, tie_word_embeddings=False, rope_theta=500.0, rms_norm_eps=1e-5),
    "qwen2, one key head": Qwen2Config(**{**QWEN2, "num_key_value_heads": 1, "vocab_size": 72}),
    "qwen3, tied": Qwen3Config(**QWEN2, head_dim=8, tie_word_embeddings=True),
    "qwen3, wide heads": Qwen3Config(**QWEN2, head_dim=20, tie_word_embeddings=False, rms_norm_eps=1e-5),
    "llama, tied, scaled": LlamaConfig(**QWEN2, rope_parameters=LLAMA3, tie_word_embeddings=True),
    "llama, untied": LlamaConfig(**QWEN2, head_dim=12, tie_word_embeddings=False, rms_norm_eps=1e-5),
    "llama, as SmolLM2": LlamaConfig(**{**QWEN2, "hidden_size": 48, "num_attention_heads": 3, "num_key_value_heads": 1}, tie_word_embeddings=True,
                                     rope_theta=1e5, rms_norm_eps=1e-5),
    "mistral, window": MistralConfig(**QWEN2, sliding_window=4, rms_norm_eps=1e-5),
    "mistral, wide heads": MistralConfig(**QWEN2, head_dim=12, sliding_window=None, rms_norm_eps=1e-5),
    "olmo2": Olmo2Config(**PHI3, tie_word_embeddings=False),
    "olmo2, tied, own keys": Olmo2Config(**{**PHI3, "num_key_value_heads": 4}, tie_word_embeddings=True),
    "gemma2": Gemma2Config(**GEMMA, sliding_window=4, attn_logit_softcapping=2.0, final_logit_softcapping=1.5),
    "gemma2, no caps": Gemma2Config(**GEMMA | dict(num_key_value_heads=1), attn_logit_softcapping=None, final_logit_softcapping=None, sliding_window=40,
                                    layer_types=[WHOLE, LOCAL, LOCAL], tie_word_embeddings=False),
    "gemma3": Gemma3TextConfig(**GEMMA, sliding_window=4, layer_types=[LOCAL, WHOLE, LOCAL]),
    "gemma3, scaled": Gemma3TextConfig(**GEMMA | dict(num_key_value_heads=1), sliding_window=5, layer_types=[WHOLE, LOCAL, WHOLE],
                                       rope_parameters=TWO_ROPES, rms_norm_eps=1e-5, tie_word_embeddings=False),
    "gemma3, final cap": Gemma3TextConfig(**GEMMA, sliding_window=40, final_logit_softcapping=1.5),
    "phi3": Phi3Config(**PHI3, tie_word_embeddings=False),
    "phi3, window": Phi3Config(**PHI3, sliding_window=6),
    "phi3, part turns, short": Phi3Config(**PHI3, tie_word_embeddings=True, max_position_embeddings=64, original_max_position_embeddings=16,
                                          rope_parameters=dict(LONGROPE, partial_rotary_factor=0.5)),
    "phi3, part turns, long": Phi3Config(**PHI3, tie_word_embeddings=True, max_position_embeddings=64, original_max_position_embeddings=8,
                                         rope_parameters=dict(LONGROPE, partial_rotary_factor=0.5)),
    "phi3, all turns, long": Phi3Config(**PHI3, max_position_embeddings=64, original_max_position_embeddings=8,
                                        rope_parameters=dict(LONGROPE, short_factor=[1.0, 1.1, 1.2, 1.3], long_factor=[1.0, 2.0, 3.0, 5.0])),
}


def random_model(config):
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread = torch.randn_like(parameter) * 0.2
            # Those of Gemma hold the factor less one.
            norm = ("norm" in name or "ln_" in name) and not config.model_type.startswith("gemma")
            parameter.copy_(1 + spread if norm and name.endswith("weight") else spread)
    return model


def compare(what, ours, theirs, allowed):
    """Largest difference over what is allowed."""
    difference = (ours - theirs).abs().max().item()
    if ours.shape != theirs.shape or not difference <= allowed:
        sys.exit(f"{what}: differs by {difference:.3g}, allowed {allowed:.3g} (shapes {ours.shape}, {theirs.shape})")
    return difference / allowed if allowed > 0 else 0.0


def make_data(vocab_size):
    """Batches of random tokens. The last samples are padded, one label in seven is not asked for."""
    tokens = torch.randint(vocab_size, (STEPS, BATCH, TOKENS))
    lengths = torch.randint(2, TOKENS + 1, (STEPS, BATCH, 1))
    place = torch.arange(TOKENS)
    tokens = torch.where(place < lengths, tokens, torch.zeros_like(tokens))
    labels = tokens.roll(-1, 2)
    weights = ((place + 1 < lengths) & (torch.rand(tokens.shape) > 1 / 7)).float()
    weights[:, 0, 0] = 1
    return {"tokens": tokens, "labels": torch.where(weights > 0, labels, 0).flatten(1), "weights": weights.flatten(1),
            "last": lengths[0, :, 0] - 1}


def mean_loss(logits, data, step):
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), data["labels"][step], reduction="none")
    weights = data["weights"][step].to(losses.dtype)
    return (losses * weights).sum() / weights.sum()


def check_own_loss(name, model, data):
    """The loss that transformers computes by itself is that of our labels and weights."""
    tokens, weights = data["tokens"][0], data["weights"][0].view(BATCH, TOKENS)
    wanted = torch.cat([torch.zeros(BATCH, 1), weights[:, :-1]], 1) > 0
    own = model(tokens, labels=torch.where(wanted, tokens, -100)).loss
    ours = mean_loss(model(tokens).logits, data, 0)
    compare(f"{name}: transformers' own loss", ours, own, TOLERANCE * own.item())


def results(model, data):
    """Logits, loss and gradients by file name of the first batch."""
    model.zero_grad()
    logits = model(data["tokens"][0]).logits
    loss = mean_loss(logits, data, 0)
    loss.backward()
    found = {"logits": logits.detach().flatten(0, 1).clone(), "loss": loss.detach()}
    found.update(gradients_by_file_name(model))
    return found


def gradients_by_file_name(model):
    """As we have them in memory. A tied head is listed once. Files keep apart the matrices of experts that transformers stacks."""
    found = {}
    for name, parameter in model.named_parameters():
        if not name.endswith((".experts.gate_up_proj", ".experts.down_proj")):
            turned = isinstance(model.get_submodule(name.rsplit(".", 1)[0]), Conv1D) and parameter.dim() == 2
            found["gradient/" + name] = (parameter.grad.t() if turned else parameter.grad).clone(memory_format=torch.contiguous_format)
            continue
        module, stack = name.rsplit(".", 1)
        for expert, gradient in enumerate(parameter.grad):
            parts = gradient.chunk(2) if stack == "gate_up_proj" else [gradient]
            for matrix, part in zip(["gate_proj", "up_proj"] if len(parts) == 2 else [stack], parts):
                found[f"gradient/{module}.{expert}.{matrix}.weight"] = part.clone()
    if model.config.model_type != "mixtral":
        return found
    names = {".mlp.": ".block_sparse_moe.", ".gate_proj.": ".w1.", ".up_proj.": ".w3.", ".down_proj.": ".w2."}
    for name in list(found):
        changed = name
        for theirs, files in names.items():
            changed = changed.replace(theirs, files)
        found[changed] = found.pop(name)
    return found


def exact_results(model, data):
    """The same in double, without the rounding of the comparison's other side."""
    return results(copy.deepcopy(model).double(), data)


def run_probe(probe, folder, dtype, *losses):
    done = probe.run(folder / "theirs", folder / "input.safetensors", folder / f"{dtype}.safetensors", folder / "ours", dtype, *losses)
    if done.returncode != 0 or done.stdout:
        sys.exit(f"{folder}: {done.stdout}{done.stderr}")
    return load_file(folder / f"{dtype}.safetensors")


def check_fp32(name, ours, theirs):
    if {key for key in ours if key.startswith("gradient/")} != {key for key in theirs if key.startswith("gradient/")}:
        sys.exit(f"{name}: gradients of different tensors: {sorted(set(ours) ^ set(theirs))}")
    worst = {key: TOLERANCE * compare(f"{name}: {key}", ours[key], value, TOLERANCE * value.abs().max().item())
             for key, value in theirs.items()}
    compare(f"{name}: loss without gradients", ours["evaluated"], theirs["loss"], TOLERANCE * theirs["loss"].item())
    return worst


def rounding_bounds(model, data, exact, draws=8):
    """What rounding to bf16 may do to each result, from the fp32 model: every module's output is multiplied by
    1 + u, u uniform within 2^-8 (one step of bf16, twice what one rounding does, as some modules round more than once),
    which multiplies the gradient that comes back by the same. Four times the largest deviation in some draws."""
    hooks = [module.register_forward_hook(
        lambda _, __, out: out * (1 + (2 * torch.rand_like(out) - 1) / 256) if torch.is_tensor(out) else out)
        for module in model.modules() if not list(module.children())]
    bounds = {key: 0.0 for key in exact}
    for _ in range(draws):
        for key, value in results(model, data).items():
            bounds[key] = max(bounds[key], 4 * (value - exact[key]).abs().max().item())
    for hook in hooks:
        hook.remove()
    return bounds


def check_bf16(name, probe, folder, model, data):
    """Same weights, rounded to bf16, in fp32 by transformers and in bf16 by us."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())
    exact = results(model, data)
    bounds = rounding_bounds(model, data, exact)
    ours = run_probe(probe, folder, "bf16")
    worst = {key: compare(f"{name}: bf16 {key}", ours[key], value, bounds[key]) for key, value in exact.items()}
    if all(torch.equal(ours[key], value) for key, value in exact.items()):
        sys.exit(f"{name}: the bf16 run was not in bf16")
    return max(worst.values())


def adamw_losses(model, data):
    """Loss before each step; vectors have no weight decay."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": matrices}, {"params": vectors, "weight_decay": 0.0}], lr=LR, betas=BETAS,
                                  eps=EPS, weight_decay=WEIGHT_DECAY)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = mean_loss(model(data["tokens"][step]).logits, data, step)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses)


def check_export(name, folder, model, data, **options):
    loaded, report = AutoModelForCausalLM.from_pretrained(folder / "ours", output_loading_info=True,
                                                          attn_implementation="eager", **options)
    if any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")):
        sys.exit(f"{name}: transformers does not load the export: {report}")
    if type(loaded) is not type(model) or loaded.dtype != torch.float32:
        sys.exit(f"{name}: the export is a {type(loaded)} in {loaded.dtype}")
    if not (folder / "ours" / "model.safetensors.index.json").exists():
        sys.exit(f"{name}: the export is not in shards")
    with torch.no_grad():
        again, logits = loaded.eval()(data["tokens"][0]).logits, model(data["tokens"][0]).logits
    exported, own = loaded.state_dict(), model.state_dict()
    if exported.keys() != own.keys() or not all(torch.equal(exported[key], value) for key, value in own.items()):
        sys.exit(f"{name}: the tensors of the export differ")
    # Where tensors lie in memory may change the order of sums.
    compare(f"{name}: logits of the export", again, logits, 1e-6 * logits.abs().max().item())


def check(probe, name, config, folder, **save_options):
    model = random_model(config)
    model.save_pretrained(folder / "theirs", **save_options)
    data = make_data(config.vocab_size)
    save_file({**{key: value.float() for key, value in data.items()},
               "optimizer": torch.tensor([LR, *BETAS, EPS, WEIGHT_DECAY])}, folder / "input.safetensors")
    check_own_loss(name, model, data)
    ours, theirs = run_probe(probe, folder, "fp32"), exact_results(model, data)
    worst = check_fp32(name, ours, theirs)
    last = theirs["logits"].view(BATCH, TOKENS, -1)[torch.arange(BATCH), data["last"]]
    if not torch.equal(ours["next"].long(), last.argmax(1)):
        sys.exit(f"{name}: next tokens {ours['next']}, expected {last.argmax(1)}")
    check_export(name, folder, model, data)
    losses = adamw_losses(model, data)
    apart = ((ours["losses"] - losses).abs() / losses).max().item()
    if not apart <= LOSS_TOLERANCE:
        sys.exit(f"{name}: AdamW losses differ by {apart:.3g}: {ours['losses']}, expected {losses}")
    model.load_state_dict(type(model).from_pretrained(folder / "theirs").state_dict())
    bf16 = check_bf16(name, probe, folder, model, data)
    tensor = max(worst, key=worst.get)
    print(f"{name}: {len(theirs) - 2} gradients, worst difference {worst[tensor]:.2g} of the largest value ({tensor}); "
          f"bf16 within {bf16:.2g} of its bound; AdamW losses within {apart:.2g}")


def without_prefix(folder):
    """As published BLOOM files are: no `transformer.` prefix, n_embed and num_attention_heads."""
    tensors = load_file(folder / "model.safetensors")
    save_file({name.removeprefix("transformer."): tensor for name, tensor in tensors.items()},
              folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["n_embed"], config["num_attention_heads"] = config.pop("hidden_size"), config.pop("n_head")
    (folder / "config.json").write_text(json.dumps(config))


def earlier_config(folder):
    """As transformers 4 and the published files of Qwen and Llama write it."""
    config = json.loads((folder / "config.json").read_text())
    rope, config["torch_dtype"] = config.pop("rope_parameters"), config.pop("dtype")
    config["rope_theta"] = rope.pop("rope_theta")
    if share := rope.pop("partial_rotary_factor", None):
        config["partial_rotary_factor"] = share
    if rope["rope_type"] == "longrope":  # as Microsoft writes it
        rope = dict(type=rope["rope_type"], short_factor=rope["short_factor"], long_factor=rope["long_factor"])
    config["rope_scaling"] = rope if rope.get("rope_type") != "default" else None
    config.pop("layer_types", None)
    (folder / "config.json").write_text(json.dumps(config))


def earlier_gemma3(folder):
    """As Google's files: one base by itself, the other and the types of layers by keys of their own."""
    config = json.loads((folder / "config.json").read_text())
    rope, types = config.pop("rope_parameters"), config.pop("layer_types")
    assert types == [LOCAL, WHOLE, LOCAL]
    config |= dict(rope_theta=rope[WHOLE]["rope_theta"], rope_local_base_freq=rope[LOCAL]["rope_theta"], sliding_window_pattern=2,
                   rope_scaling=dict(rope_type="linear", factor=8.0), torch_dtype=config.pop("dtype"), cache_implementation="hybrid")
    (folder / "config.json").write_text(json.dumps(config))


def earlier_neox(folder):
    """As EleutherAI's files: positions by other keys, and buffers of the class of 2022."""
    config = json.loads((folder / "config.json").read_text())
    rope = config.pop("rope_parameters")
    config["rotary_emb_base"], config["rotary_pct"] = rope["rope_theta"], rope["partial_rotary_factor"]
    (folder / "config.json").write_text(json.dumps(config))
    tensors = load_file(folder / "model.safetensors")
    for layer in range(config["num_hidden_layers"]):
        name = f"gpt_neox.layers.{layer}.attention."
        tensors |= {name + "bias": torch.ones(1, 1, 8, 8, dtype=torch.bool).tril(), name + "masked_bias": torch.tensor(-1e9),
                    name + "rotary_emb.inv_freq": torch.ones(1)}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def earlier_gpt2(folder):
    """As OpenAI's files: no `transformer.` prefix, masks of the class of then, keys of today's class left out."""
    tensors = {name.removeprefix("transformer."): tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    config = json.loads((folder / "config.json").read_text())
    for layer in range(config["n_layer"]):
        tensors |= {f"h.{layer}.attn.bias": torch.ones(1, 1, 8, 8).tril(), f"h.{layer}.attn.masked_bias": torch.tensor(-1e4)}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    for key in ("n_inner", "scale_attn_weights", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "add_cross_attention", "tie_word_embeddings"):
        config.pop(key, None)
    (folder / "config.json").write_text(json.dumps(config | dict(n_ctx=config["n_positions"])))


def ungrouped_config(folder):
    """As Llama files of 2023: every head has keys of its own, and the file does not say so."""
    earlier_config(folder)
    config = json.loads((folder / "config.json").read_text())
    for key in ("num_key_value_heads", "head_dim", "attention_bias", "mlp_bias"):
        config.pop(key, None)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = load_file(folder / "model.safetensors")
    buffers = {f"model.layers.{layer}.self_attn.rotary_emb.inv_freq": torch.ones(4) for layer in range(config["num_hidden_layers"])}
    save_file(tensors | buffers, folder / "model.safetensors", {"format": "pt"})


def check_published(probe, name, config, folder, change):
    """The same logits from a folder as it is published, which transformers reads, too."""
    model = random_model(config)
    model.save_pretrained(folder / "theirs")
    change(folder / "theirs")
    model = AutoModelForCausalLM.from_pretrained(folder / "theirs", attn_implementation="eager", dtype=torch.float32).eval()
    data = make_data(config.vocab_size)
    save_file({**{key: value.float() for key, value in data.items()},
               "optimizer": torch.tensor([LR, *BETAS, EPS, WEIGHT_DECAY])}, folder / "input.safetensors")
    ours, theirs = run_probe(probe, folder, "fp32"), exact_results(model, data)
    check_fp32(name, ours, theirs)
    check_export(name, folder, model, data)
    print(f"{name}: loads and exports")


def check_two_tables(probe, name, config, folder):
    """Files with a head of its own beside config.json's tie_word_embeddings: transformers goes by the files, we refuse and say how to
    have the same. A head that is the table, saved twice or alone, is one tensor to both."""
    model = random_model(config)
    model.save_pretrained(folder / "theirs")
    path = folder / "theirs" / "model.safetensors"
    tensors = load_file(path)
    table = next(key for key in tensors if key.endswith(("embed_tokens.weight", "word_embeddings.weight", "wte.weight")))
    data = make_data(config.vocab_size)
    save_file({**{key: value.float() for key, value in data.items()},
               "optimizer": torch.tensor([LR, *BETAS, EPS, WEIGHT_DECAY])}, folder / "input.safetensors")

    def logits_of_files(head, without_table=False):
        changed = {key: value for key, value in tensors.items() if not (without_table and key == table)}
        save_file({**changed, "lm_head.weight": head}, path, {"format": "pt"})
        loaded = AutoModelForCausalLM.from_pretrained(folder / "theirs", attn_implementation="eager").eval()
        with torch.no_grad():
            return loaded(data["tokens"][0]).logits.flatten(0, 1)

    for what, alone in (("saved twice", False), ("saved as the head", True)):
        theirs = logits_of_files(tensors[table].clone(), alone)
        compare(f"{name}, {what}", run_probe(probe, folder, "fp32")["logits"], theirs, TOLERANCE * theirs.abs().max().item())
    theirs = logits_of_files(tensors[table] + 0.1 * torch.randn_like(tensors[table]))
    done = probe.run(folder / "theirs", folder / "input.safetensors", folder / "out", folder / "ours", "fp32")
    for word in ("'lm_head.weight' is not '" + table, "tie_word_embeddings", "\"tie_word_embeddings\": false"):
        if done.returncode != 65 or word not in done.stderr:
            sys.exit(f"{name}: expected {word}, exit {done.returncode}: {done.stderr}")
    settings = json.loads((folder / "theirs" / "config.json").read_text())
    (folder / "theirs" / "config.json").write_text(json.dumps({**settings, "tie_word_embeddings": False}))
    compare(f"{name}, untied", run_probe(probe, folder, "fp32")["logits"], theirs, TOLERANCE * theirs.abs().max().item())
    print(f"{name}: a head of its own is refused, or taken as transformers does")


def check_upcast(probe, folder):
    """Products of scores that transformers takes in another order, in fp32 alone, are the same."""
    model = random_model(GPT2Config(**GPT2, scale_attn_by_inverse_layer_idx=True, reorder_and_upcast_attn=True))
    model.save_pretrained(folder / "theirs")
    data = make_data(model.config.vocab_size)
    save_file({**{key: value.float() for key, value in data.items()},
               "optimizer": torch.tensor([LR, *BETAS, EPS, WEIGHT_DECAY])}, folder / "input.safetensors")
    with torch.no_grad():
        theirs = model(data["tokens"][0]).logits.flatten(0, 1)
    compare("gpt2, upcast", run_probe(probe, folder, "fp32")["logits"], theirs, TOLERANCE * theirs.abs().max().item())
    print("gpt2, upcast: equal logits")


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    probe = Probe(sys.argv[1])
    with tempfile.TemporaryDirectory() as root:
        for index, (name, config) in enumerate(CASES.items()):
            folder = Path(root) / str(index)
            folder.mkdir()
            check(probe, name, config, folder)
        folder = Path(root) / "sharded"
        folder.mkdir()
        check(probe, "qwen2, sharded", CASES["qwen2, untied"], folder, max_shard_size="20KB")
        if not (folder / "theirs" / "model.safetensors.index.json").exists():
            sys.exit("transformers wrote no shards")
        for name, config, change in (("bloom, published", CASES["bloom, 6 heads"], without_prefix),
                                     ("qwen2, published", CASES["qwen2, untied"], earlier_config),
                                     ("qwen3, published", CASES["qwen3, wide heads"], earlier_config),
                                     ("llama, published", CASES["llama, tied, scaled"], earlier_config),
                                     ("gpt_neox, published", CASES["gpt_neox"], earlier_neox),
                                     ("gpt2, published", CASES["gpt2"], earlier_gpt2),
                                     ("gemma2, published", CASES["gemma2"], earlier_config),
                                     ("gemma3, published", CASES["gemma3"], earlier_gemma3),
                                     ("mistral, published", CASES["mistral, window"], earlier_config),
                                     ("phi3, published", CASES["phi3, part turns, long"], earlier_config),
                                     ("llama, of 2023", LlamaConfig(**{**QWEN2, "num_key_value_heads": 4}), ungrouped_config)):
            folder = Path(root) / name.replace(", ", "-")
            folder.mkdir()
            check_published(probe, name, config, folder, change)
        folder = Path(root) / "gpt2-upcast"
        folder.mkdir()
        check_upcast(probe, folder)
        for name in ("bloom, 6 heads", "gpt2", "qwen2, tied", "llama, tied, scaled"):
            folder = Path(root) / (name.replace(", ", "-") + "-tables")
            folder.mkdir()
            check_two_tables(probe, name, CASES[name], folder)


if __name__ == "__main__":
    main()
