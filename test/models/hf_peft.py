"""dstrain's low-rank adapters against PEFT on transformers' models: an adapter that PEFT wrote is trained
by AdamW in fp32 on both sides. Equal logits before, equal losses of 20 steps, and after them equal logits of dstrain's
adapter in PEFT and of its merged weights in transformers.

usage: hf_peft.py PEFT_PROBE; exit code 77 where peft is not installed."""

import json
import os
import sys
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import torch
    from peft import LoraConfig, PeftModel, get_peft_model
    from safetensors.torch import load_file, save_file
    from transformers import (CLIPConfig, CLIPForImageClassification, DeiTConfig, DeiTForImageClassification, Dinov2Config, Dinov2ForImageClassification,
                              SiglipConfig, SiglipForImageClassification)
    from transformers import (BloomConfig, BloomForCausalLM, Gemma2Config, Gemma2ForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig, GPT2Config, GPT2LMHeadModel, GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, Olmo2Config, Olmo2ForCausalLM,
                              Phi3Config, Phi3ForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM, ViTConfig, ViTForImageClassification)
except ImportError as error:
    print(f"skipped: this python has no peft ({error}); scripts/test installs it")
    sys.exit(77)

from probes import Probe

TOLERANCE = 1e-5  # of the largest logit
LOSS_TOLERANCE = 1e-4  # relative
STEPS, BATCH, TOKENS = 10, 4, 11
LR, WEIGHT_DECAY = 2e-3, 0.1

VIT = ViTConfig(hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48, image_size=8,
                patch_size=4, num_channels=3, num_labels=7)
VISION = dict(hidden_size=32, num_hidden_layers=3, num_attention_heads=4, image_size=8, patch_size=4, num_channels=3)
TOWER = dict(vision_config={**VISION, "intermediate_size": 48}, num_labels=7,
             text_config=dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=20, bos_token_id=1, eos_token_id=2))
# A pooling head is named as unused, and the probe then says so.
NO_POOLING_HEAD = {**TOWER, "vision_config": {**TOWER["vision_config"], "vision_use_head": False}}
DEIT, CLIP, SIGLIP = DeiTConfig(**VISION, intermediate_size=48, num_labels=7), CLIPConfig(**TOWER), SiglipConfig(**NO_POOLING_HEAD)
DINOV2, GATED = (Dinov2Config(**VISION, mlp_ratio=2, num_labels=7, use_swiglu_ffn=gated) for gated in (False, True))
BLOOM = BloomConfig(hidden_size=48, n_layer=3, n_head=6, vocab_size=67)
DECODER = dict(hidden_size=32, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48,
               vocab_size=67, tie_word_embeddings=True)
QWEN2, QWEN3, LLAMA = Qwen2Config(**DECODER), Qwen3Config(**DECODER, head_dim=12), LlamaConfig(**DECODER)
MAKE = {"vit": ViTForImageClassification, "bloom": BloomForCausalLM, "gpt_neox": GPTNeoXForCausalLM, "gpt2": GPT2LMHeadModel, "qwen2": Qwen2ForCausalLM,
        "qwen3": Qwen3ForCausalLM, "llama": LlamaForCausalLM, "mistral": MistralForCausalLM, "phi3": Phi3ForCausalLM,
        "olmo2": Olmo2ForCausalLM, "gemma2": Gemma2ForCausalLM, "gemma3_text": Gemma3ForCausalLM,
        "deit": DeiTForImageClassification, "dinov2": Dinov2ForImageClassification,
        "clip": CLIPForImageClassification, "siglip": SiglipForImageClassification}
IMAGES = {"vit", "deit", "dinov2", "clip", "siglip"}
GEMMA = dict(DECODER, head_dim=12, query_pre_attn_scalar=20, sliding_window=4, pad_token_id=None)
GEMMA2, GEMMA3 = Gemma2Config(**GEMMA), Gemma3TextConfig(**GEMMA, layer_types=["sliding_attention", "full_attention", "sliding_attention"])
OLMO2 = Olmo2Config(**DECODER, pad_token_id=None)
NEOX = GPTNeoXConfig(hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48, vocab_size=67, attention_dropout=0.0)
GPT2 = GPT2Config(n_embd=32, n_layer=3, n_head=4, vocab_size=67, n_positions=16, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0)
MISTRAL, PHI3 = MistralConfig(**DECODER, sliding_window=4), Phi3Config(**DECODER, pad_token_id=None)
LATER = [f"model.layers.{layer}.mlp.{name}_proj" for layer in (1, 2) for name in ("up", "down")]

# name: configuration, rank, alpha, PEFT's target_modules, our targets, modules trained in full
CASES = {
    "vit": (VIT, 4, 8, ["q_proj", "v_proj"], [], ["classifier"]),
    "vit, all maps": (VIT, 3, 3, ["q_proj", "k_proj", "v_proj", "o_proj", "fc1", "fc2"],
                      ["query", "key", "value", "dense"], ["classifier", "vit.layernorm"]),
    "vit, one layer": (VIT, 2, 5, ["vit.layers.1.attention.v_proj"], ["vit.layers.1.*.v_proj"], []),
    "deit": (DEIT, 4, 8, ["q_proj", "v_proj"], [], ["classifier"]),
    "dinov2": (DINOV2, 4, 8, ["q_proj", "v_proj"], [], ["classifier"]),
    "dinov2, all maps": (DINOV2, 3, 3, ["q_proj", "k_proj", "v_proj", "o_proj", "fc1", "fc2"], ["query", "key", "value", "dense", "fc1", "fc2"],
                         ["classifier"]),
    "dinov2, gated": (GATED, 3, 3, ["o_proj", "down_proj"], ["dense", "weights_out"], []),
    "clip, all maps": (CLIP, 4, 8, ["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"], ["*_proj", "fc?"], ["classifier"]),
    "siglip": (SIGLIP, 4, 8, ["q_proj", "v_proj"], [], ["classifier"]),
    "bloom": (BLOOM, 4, 8, ["query_key_value"], [], []),
    "bloom, all maps": (BLOOM, 2, 4, ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"],
                        ["query_key_value", "dense*"], []),
    "qwen2": (QWEN2, 8, 16, ["q_proj", "k_proj", "v_proj", "o_proj"], [], []),
    "qwen2, all maps": (QWEN2, 2, 4, ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
                        ["*_proj"], ["model.norm"]),
    "qwen2, later layers": (QWEN2, 2, 4, LATER, LATER, []),
    "qwen3": (QWEN3, 8, 16, ["q_proj", "k_proj", "v_proj", "o_proj"], [], []),
    "qwen3, norms": (QWEN3, 2, 4, ["q_proj"], ["q_proj"], ["q_norm", "k_norm"]),
    "llama": (LLAMA, 8, 16, ["q_proj", "k_proj", "v_proj", "o_proj"], [], []),
    "gpt2": (GPT2, 8, 16, ["c_attn"], [], []),
    "gpt2, all maps": (GPT2, 2, 4, ["c_attn", "c_proj", "c_fc"], ["all-linear"], ["ln_f", "wpe"]),
    "gpt2, whole matrices": (GPT2, 2, 4, ["mlp.c_proj"], ["*.mlp.c_proj"], ["c_attn"]),
    "gpt_neox": (NEOX, 8, 16, ["query_key_value"], [], []),
    "gpt_neox, all maps": (NEOX, 2, 4, ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"], ["all-linear"], ["final_layer_norm"]),
    "mistral": (MISTRAL, 8, 16, ["q_proj", "k_proj", "v_proj", "o_proj"], [], []),
    "phi3": (PHI3, 8, 16, ["qkv_proj", "o_proj"], [], []),
    "olmo2, all maps": (OLMO2, 2, 4, ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"], ["*_proj"], ["q_norm"]),
    "gemma2": (GEMMA2, 8, 16, ["q_proj", "k_proj", "v_proj", "o_proj"], [], []),
    "gemma3, all maps": (GEMMA3, 2, 4, ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"], ["all-linear"],
                         ["pre_feedforward_layernorm"]),
    "phi3, all maps": (PHI3, 2, 4, ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"], ["*_proj"], ["model.norm"]),
    "bloom, table": (BLOOM, 4, 8, ["query_key_value"], [], ["word_embeddings"]),
    "qwen2, table": (QWEN2, 4, 8, ["q_proj", "v_proj"], ["q_proj", "v_proj"], ["embed_tokens"]),
    "llama, table and norm": (LLAMA, 4, 8, ["q_proj", "v_proj"], ["q_proj", "v_proj"], ["embed_tokens", "model.norm"]),
    "llama, untied": (LlamaConfig(**{**DECODER, "tie_word_embeddings": False}), 4, 8, ["q_proj"], ["q_proj"], ["embed_tokens"]),
}
TABLES = {"word_embeddings", "embed_tokens"}


def random_model(config):
    config._attn_implementation = "eager"
    model = MAKE[config.model_type](config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread = torch.randn_like(parameter) * 0.2
            norm = ("norm" in name or "ln_" in name) and not config.model_type.startswith("gemma")
            parameter.copy_(1 + spread if norm and name.endswith("weight") or name.endswith("lambda1") else spread)
    return model


def make_data(config):
    if config.model_type in IMAGES:
        vision = getattr(config, "vision_config", config)
        return {"images": torch.randn(STEPS, BATCH, vision.num_channels, vision.image_size, vision.image_size),
                "labels": torch.randint(config.num_labels, (STEPS, BATCH))}
    tokens = torch.randint(config.vocab_size, (STEPS, BATCH, TOKENS))
    weights = torch.ones(STEPS, BATCH, TOKENS)
    weights[:, :, -1] = 0
    return {"tokens": tokens, "labels": (tokens.roll(-1, 2) * weights.long()).flatten(1), "weights": weights.flatten(1)}


def logits_of(model, data, step):
    logits = model(data["images"][step] if "images" in data else data["tokens"][step]).logits
    return logits.flatten(0, -2)


def adamw_losses(model, data):
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=LR, weight_decay=WEIGHT_DECAY)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        each = torch.nn.functional.cross_entropy(logits_of(model, data, step), data["labels"][step], reduction="none")
        weights = data.get("weights", torch.ones_like(data["labels"]))[step].float()
        loss = (each * weights).sum() / weights.sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses)


def compare(what, ours, theirs):
    difference, scale = (ours - theirs).abs().max().item(), theirs.abs().max().item()
    if ours.shape != theirs.shape or not difference <= TOLERANCE * scale:
        sys.exit(f"{what}: differs by {difference:.3g}, allowed {TOLERANCE * scale:.3g} (shapes {ours.shape}, {theirs.shape})")


def check(probe, name, folder, config, rank, alpha, target_modules, targets, full):
    base = random_model(config)
    base.save_pretrained(folder / "base")
    # PEFT copies each module; it keeps table and head of a tied model one where it is told to.
    tied = not TABLES.isdisjoint(full) and config.tie_word_embeddings
    theirs = get_peft_model(base, LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=0.0, target_modules=target_modules,
                                             modules_to_save=(full + ["lm_head"] * tied) or None, ensure_weight_tying=tied)).eval()
    with torch.no_grad():  # B would start at zero, and A would get no gradient
        for key, parameter in theirs.named_parameters():
            if "lora_B" in key:
                parameter.normal_(std=0.2)
    theirs.save_pretrained(folder / "start")
    data = make_data(config)
    save_file({key: value.float() for key, value in data.items()}, folder / "input.safetensors")
    (folder / "options.json").write_text(json.dumps({"rank": rank, "alpha": alpha, "targets": targets, "also_train": full,
                                                     "lr": LR, "weight_decay": WEIGHT_DECAY}))
    done = probe.run(folder)
    if done.returncode != 0 or done.stdout:
        sys.exit(f"{name}: {done.stdout}{done.stderr}")
    ours = load_file(folder / "output.safetensors")

    with torch.no_grad():
        compare(f"{name}: logits of PEFT's adapter", ours["before"], logits_of(theirs, data, 0))
        plain = logits_of(MAKE[config.model_type].from_pretrained(folder / "base", attn_implementation="eager").eval(), data, 0)
        if torch.allclose(plain, ours["before"]):
            sys.exit(f"{name}: the adapter does nothing")
    losses = adamw_losses(theirs, data)
    apart = ((ours["losses"] - losses).abs() / losses).max().item()
    if not apart <= LOSS_TOLERANCE:
        sys.exit(f"{name}: AdamW losses differ by {apart:.3g}: {ours['losses']}, expected {losses}")

    make = MAKE[config.model_type]
    loaded = PeftModel.from_pretrained(make.from_pretrained(folder / "base", attn_implementation="eager"),
                                       folder / "adapter").eval()
    whole, report = make.from_pretrained(folder / "merged", output_loading_info=True, attn_implementation="eager")
    if any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")):
        sys.exit(f"{name}: transformers does not load the merged weights: {report}")
    with torch.no_grad():
        compare(f"{name}: logits of our adapter in PEFT", logits_of(loaded, data, 0), ours["after"])
        compare(f"{name}: logits of the merged weights", logits_of(whole.eval(), data, 0), ours["after"])
    started, written = load_file(folder / "start/adapter_model.safetensors"), load_file(folder / "adapter/adapter_model.safetensors")
    if set(started) != set(written):
        sys.exit(f"{name}: tensors of other names: {sorted(set(started) ^ set(written))}")
    print(f"{name}: {len(written)} tensors, losses within {apart:.2g}, equal logits in PEFT and merged")


def check_tables(probe, folder, config, table):
    """Adapters in which table and head of a tied model are not one are refused; where PEFT keeps them one, both are in its file. (Of BLOOM it
    does so only where the head is named, too.)"""
    base = random_model(config)
    base.save_pretrained(folder / "base")
    save_file({key: value.float() for key, value in make_data(config).items()}, folder / "input.safetensors")
    (folder / "options.json").write_text(json.dumps({"rank": 2, "alpha": 4, "targets": [], "also_train": [table], "lr": LR,
                                                     "weight_decay": WEIGHT_DECAY}))
    targets = ["query_key_value"] if config.model_type == "bloom" else ["q_proj", "k_proj", "v_proj", "o_proj"]
    for full, tied, words in (([table], False, [f"{table}.weight' is not the base's head, which PEFT keeps"]),
                              (["lm_head"], False, ["lm_head.weight' is not the base's embedding, which PEFT keeps"]),
                              ([table, "lm_head"], False, [f"{table}.weight' is not 'base_model.model.lm_head.weight'"]),
                              ([table, "lm_head"], True, [])):
        theirs = get_peft_model(MAKE[config.model_type].from_pretrained(folder / "base", attn_implementation="eager"),
                                LoraConfig(r=2, lora_alpha=4, target_modules=targets, modules_to_save=full,
                                           ensure_weight_tying=tied)).eval()
        with torch.no_grad():
            for key, parameter in theirs.named_parameters():
                if "modules_to_save" in key:
                    parameter.add_(torch.randn_like(parameter) * 0.2)
        theirs.save_pretrained(folder / "start")
        if words:
            expect_refusal(probe, folder, words + ["tie_word_embeddings"])
            continue
        with torch.no_grad():
            data = make_data(config)
            save_file({key: value.float() for key, value in data.items()}, folder / "input.safetensors")
            probe.run(folder, check=True)
            compare(f"{config.model_type}: a tied table", load_file(folder / "output.safetensors")["before"], logits_of(theirs, data, 0))
    print(f"{config.model_type}: tables and heads that are not one are refused")


def check_earlier_names(probe, folder):
    """An adapter of a ViT that PEFT wrote under transformers 4."""
    check(probe, "vit", folder, *CASES["vit"])
    start = folder / "start"
    config = json.loads((start / "adapter_config.json").read_text())
    config["target_modules"] = ["query", "value"]
    (start / "adapter_config.json").write_text(json.dumps(config))
    earlier = {key.replace("vit.layers.", "vit.encoder.layer.").replace(".q_proj.", ".attention.query.")
               .replace(".v_proj.", ".attention.value."): value
               for key, value in load_file(start / "adapter_model.safetensors").items()}
    save_file(earlier, start / "adapter_model.safetensors")
    before = load_file(folder / "output.safetensors")
    probe.run(folder, check=True)
    if not all(torch.equal(value, before[key]) for key, value in load_file(folder / "output.safetensors").items()):
        sys.exit("the names of transformers 4 give another result")
    print("vit, names of transformers 4: equal")


def check_refusals(probe, folder):
    """What does not fit is named."""
    config = json.loads((folder / "start/adapter_config.json").read_text())
    options = json.loads((folder / "options.json").read_text())
    for changed, words in (({"r": 5}, ["r is 5; lora.rank is 4"]), ({"use_dora": True}, ["use_dora is true"]),
                           ({"lora_alpha": 9}, ["lora_alpha is 9; lora.alpha is 8"]),
                           ({"init_lora_weights": "pissa"}, ["init_lora_weights is \"pissa\""])):
        (folder / "start/adapter_config.json").write_text(json.dumps({**config, **changed}))
        expect_refusal(probe, folder, words)
    (folder / "start/adapter_config.json").write_text(json.dumps(config))
    for changed, words in (({"also_train": []}, ["classifier.bias' is not trained here, and 1 more like it"]),
                           ({"targets": ["query"]}, ["value.lora_A.weight' is not trained here"]),
                           ({"targets": ["query", "key", "value"]}, ["no tensor 'base_model.model.vit.layers.0.attention.k_proj.lora_A.weight' [4, 32]"]),
                           ({"targets": ["q_prj"]}, ["lora.targets", "'q_prj'", "dense, key, query, value"]),
                           ({"also_train": ["clasifier"]}, ["lora.also_train", "'clasifier'"])):
        (folder / "options.json").write_text(json.dumps({**options, **changed}))
        expect_refusal(probe, folder, words)
    print("refusals: named")


def expect_refusal(probe, folder, words):
    done = probe.run(folder)
    if done.returncode not in (64, 65) or not all(word in done.stderr for word in words):
        sys.exit(f"expected {words}, exit {done.returncode}: {done.stderr}")


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    probe = Probe(sys.argv[1])
    with tempfile.TemporaryDirectory() as root:
        for index, (name, case) in enumerate(CASES.items()):
            folder = Path(root) / str(index)
            folder.mkdir()
            check(probe, name, folder, *case)
        folder = Path(root) / "earlier"
        folder.mkdir()
        check_earlier_names(probe, folder)
        check_refusals(probe, folder)
        for config, table in ((BLOOM, "word_embeddings"), (LLAMA, "embed_tokens")):
            folder = Path(root) / f"{config.model_type}-tables"
            folder.mkdir()
            check_tables(probe, folder, config, table)


main()
