"""dstrain's mixtures of experts against those of transformers on files that save_pretrained wrote: logits, loss, every
gradient, greedy next tokens and the losses of AdamW steps in fp32, the same logits from what dstrain exports, and the
losses of the routers with their gradients.

usage: hf_moe.py LM_PROBE; exit code 77 where transformers is not installed."""

import sys
import tempfile
from pathlib import Path

import hf_lm  # leaves with 77 where transformers is not installed
import torch
from hf_lm import BATCH, TOKENS, TOLERANCE, compare
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, MixtralConfig, Qwen2MoeConfig, Qwen3MoeConfig
from transformers.models.qwen2_moe.modeling_qwen2_moe import load_balancing_loss_func

MOE = dict(hidden_size=32, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, intermediate_size=40,
           moe_intermediate_size=24, vocab_size=67)
QWEN2 = dict(**MOE, num_experts=6, num_experts_per_tok=2, shared_expert_intermediate_size=48)
QWEN3 = dict(**MOE, num_experts=5, num_experts_per_tok=3, head_dim=12)
MIXTRAL = dict(hidden_size=32, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, intermediate_size=24, vocab_size=67,
               num_local_experts=5, num_experts_per_tok=2)
CASES = {
    "qwen2_moe": Qwen2MoeConfig(**QWEN2),
    "qwen2_moe, tied, even weights": Qwen2MoeConfig(**QWEN2, norm_topk_prob=True, tie_word_embeddings=True),
    "qwen2_moe, one expert": Qwen2MoeConfig(**{**QWEN2, "num_experts": 1, "num_experts_per_tok": 1}),
    "qwen2_moe, every second layer": Qwen2MoeConfig(**QWEN2, decoder_sparse_step=2),
    "qwen2_moe, first layer dense, no biases": Qwen2MoeConfig(**QWEN2, mlp_only_layers=[0], qkv_bias=False),
    "qwen3_moe": Qwen3MoeConfig(**QWEN3),
    "qwen3_moe, even weights": Qwen3MoeConfig(**QWEN3, norm_topk_prob=True),
    "qwen3_moe, all experts": Qwen3MoeConfig(**{**QWEN3, "num_experts_per_tok": 5}, norm_topk_prob=True),
    "mixtral": MixtralConfig(**MIXTRAL),
    "mixtral, window, wide heads": MixtralConfig(**MIXTRAL, sliding_window=4, head_dim=12, tie_word_embeddings=True),
}
BALANCE, Z = 0.3, 0.2


def random_model(config):
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager",
                                             experts_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread = torch.randn_like(parameter) * 0.2
            parameter.copy_(1 + spread if "norm" in name else spread)
    return model


def save_input(folder, data):
    settings = [hf_lm.LR, *hf_lm.BETAS, hf_lm.EPS, hf_lm.WEIGHT_DECAY]
    save_file({**{key: value.float() for key, value in data.items()}, "optimizer": torch.tensor(settings)},
              folder / "input.safetensors")


def check(probe, name, config, folder):
    model = random_model(config)
    model.save_pretrained(folder / "theirs")
    data = hf_lm.make_data(config.vocab_size)
    save_input(folder, data)
    ours, theirs = hf_lm.run_probe(probe, folder, "fp32"), hf_lm.exact_results(model, data)
    worst = hf_lm.check_fp32(name, ours, theirs)
    last = theirs["logits"].view(BATCH, TOKENS, -1)[torch.arange(BATCH), data["last"]]
    if not torch.equal(ours["next"].long(), last.argmax(1)):
        sys.exit(f"{name}: next tokens {ours['next']}, expected {last.argmax(1)}")
    hf_lm.check_export(name, folder, model, data, experts_implementation="eager")
    losses = hf_lm.adamw_losses(model, data)
    apart = ((ours["losses"] - losses).abs() / losses).max().item()
    if not apart <= hf_lm.LOSS_TOLERANCE:
        sys.exit(f"{name}: AdamW losses differ by {apart:.3g}: {ours['losses']}, expected {losses}")
    tensor = max(worst, key=worst.get)
    print(f"{name}: {len(theirs) - 2} gradients, worst difference {worst[tensor]:.2g} of the largest value ({tensor}); "
          f"AdamW losses within {apart:.2g}")


def router_losses(logits, config):
    """Balance and z loss of one sample in one layer: logits [T, E]."""
    probabilities = logits.softmax(1)
    choices = torch.topk(probabilities, config.num_experts_per_tok).indices
    share = torch.nn.functional.one_hot(choices, config.num_experts).sum((0, 1)).to(logits.dtype) / len(logits)
    return config.num_experts * (share * probabilities.mean(0)).sum(), logits.logsumexp(1).square().mean()


def check_router_losses(probe, name, config, folder, samples, lengths=None):
    """Means over samples and layers, of the tokens that are no padding; transformers pools samples and layers, so that it is asked for
    one of each at a time."""
    model = random_model(config)
    model.save_pretrained(folder / "theirs")
    data = hf_lm.make_data(config.vocab_size)
    data["last"], data["tokens"] = data["last"][:samples], data["tokens"][:, :samples].contiguous()
    for key in ("labels", "weights"):
        data[key] = data[key][:, :samples * TOKENS].contiguous()
    lengths = lengths or [TOKENS] * samples
    mask = (torch.arange(TOKENS) < torch.tensor(lengths)[:, None]).long()
    for key in ("labels", "weights"):  # padding has no labels
        data[key] = data[key] * torch.nn.functional.pad(mask[:, 1:], (0, 1)).flatten()
    save_input(folder, {**data, "lengths": torch.tensor(lengths).expand(hf_lm.STEPS, -1).contiguous()})
    ours = hf_lm.run_probe(probe, folder, "fp32", BALANCE, Z)
    model = model.double()
    out = model(data["tokens"][0], attention_mask=mask, output_router_logits=True)
    layers = [logits.view(samples, TOKENS, -1) for logits in out.router_logits]
    pairs = [router_losses(sample[:length], config) for layer in layers for sample, length in zip(layer, lengths)]
    balance, z = (torch.stack(values).mean() for values in zip(*pairs))
    theirs = torch.stack([load_balancing_loss_func((layer[i],), config.num_experts, config.num_experts_per_tok, mask[i:i + 1])
                          for layer in layers for i in range(samples)]).mean()
    compare(f"{name}: transformers' balance loss", balance, theirs, 1e-6 * theirs.item())
    compare(f"{name}: balance loss", ours["balance"], balance, TOLERANCE * balance.item())
    (hf_lm.mean_loss(out.logits, data, 0) + BALANCE * balance + Z * z).backward()
    gradients = hf_lm.gradients_by_file_name(model)
    worst = max(compare(f"{name}: {key}", ours[key], value, TOLERANCE * value.abs().max().item())
                for key, value in gradients.items())
    print(f"{name}, samples of {lengths}: balance loss {balance:.4f}, gradients within {worst:.2g} of what is allowed")


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    probe = hf_lm.Probe(sys.argv[1])
    with tempfile.TemporaryDirectory() as root:
        for index, (name, config) in enumerate(CASES.items()):
            folder = Path(root) / str(index)
            folder.mkdir()
            check(probe, name, config, folder)
        losses = (("router losses, one layer", Qwen2MoeConfig(**{**QWEN2, "num_hidden_layers": 1}), 1, None),
                  ("router losses", Qwen2MoeConfig(**QWEN2), 3, None),
                  ("router losses, even weights", Qwen3MoeConfig(**QWEN3, norm_topk_prob=True), 2, None),
                  ("router losses, mixtral", MixtralConfig(**MIXTRAL), 2, None),
                  ("router losses, padding", Qwen2MoeConfig(**QWEN2), 3, [TOKENS, 4, 7]),
                  ("router losses, padding and even weights", Qwen3MoeConfig(**QWEN3, norm_topk_prob=True), 2, [3, 10]))
        for name, config, samples, lengths in losses:
            folder = Path(root) / name.replace(", ", "-")
            folder.mkdir()
            check_router_losses(probe, name, config, folder, samples, lengths)


main()
