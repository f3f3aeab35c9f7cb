"""dstrain's ViT against transformers' ViTForImageClassification: logits, loss and every gradient on files that
save_pretrained wrote, and the same logits from what dstrain exports.

usage: hf_vit.py VIT_PROBE; exit code 77 where transformers is not installed."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import ViTConfig, ViTForImageClassification, ViTModel
except ImportError as error:
    print(f"skipped: this python has no transformers ({error}); scripts/test installs it")
    sys.exit(77)

TOLERANCE = 1e-5  # of the largest value of a tensor, fp32

CASES = {
    "small": dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=8,
                  patch_size=2, num_channels=1, num_labels=10),
    "odd sizes": dict(hidden_size=48, num_hidden_layers=3, num_attention_heads=3, intermediate_size=80, image_size=28,
                      patch_size=14, num_channels=3, num_labels=7, layer_norm_eps=1e-6),
    "one layer": dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=1, intermediate_size=16, image_size=6,
                      patch_size=3, num_channels=2, num_labels=2),
}


def random_model(config):
    model = ViTForImageClassification(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread = torch.randn_like(parameter) * 0.2
            parameter.copy_(1 + spread if "layernorm" in name and name.endswith("weight") else spread)
    return model


def compare(what, ours, theirs, scale=None):
    scale = theirs.abs().max().item() if scale is None else scale
    difference = (ours - theirs).abs().max().item()
    if ours.shape != theirs.shape or not difference <= TOLERANCE * scale:
        sys.exit(f"{what}: differs by {difference:.3g}, allowed {TOLERANCE * scale:.3g} (shapes {ours.shape}, {theirs.shape})")
    return difference / scale


def file_gradients(model, config, folder):
    """Gradients under the names that save_pretrained gives the tensors: saved as if they were weights."""
    gradients = ViTForImageClassification(config)
    with torch.no_grad():
        for parameter, source in zip(gradients.parameters(), model.parameters()):
            parameter.copy_(source.grad)
    gradients.save_pretrained(folder)
    return load_file(folder / "model.safetensors")


PUBLISHED_FIELDS = ("architectures", "attention_probs_dropout_prob", "hidden_act", "hidden_dropout_prob", "hidden_size",
                    "id2label", "image_size", "initializer_range", "intermediate_size", "label2id", "layer_norm_eps",
                    "model_type", "num_attention_heads", "num_channels", "num_hidden_layers", "patch_size", "qkv_bias")


def as_published(folder):
    """Leaves in config.json what google/vit-base-patch16-224 and vit-huge-patch14-224-in21k have there."""
    config = json.loads((folder / "config.json").read_text())
    config = {key: config[key] for key in PUBLISHED_FIELDS if key in config} | {"transformers_version": "4.13.0.dev0"}
    (folder / "config.json").write_text(json.dumps(config))


def check(probe, name, sizes, folder, change=None, **save_options):
    config = ViTConfig(**sizes)
    model = random_model(config)
    model.save_pretrained(folder / "theirs", **save_options)
    if change is not None:
        change(folder / "theirs")
    images = torch.randn(5, config.num_channels, config.image_size, config.image_size)
    labels = torch.randint(config.num_labels, (5,))
    save_file({"pixel_values": images, "labels": labels.float()}, folder / "input.safetensors")
    subprocess.run([probe, folder / "theirs", folder / "input.safetensors", folder / "output.safetensors", folder / "ours"],
                   check=True)

    result = model(pixel_values=images, labels=labels)
    result.loss.backward()
    ours = load_file(folder / "output.safetensors")
    worst = {"logits": compare(f"{name}: logits", ours.pop("logits"), result.logits.detach()),
             "loss": compare(f"{name}: loss", ours.pop("loss"), result.loss.detach())}
    theirs = file_gradients(model, config, folder / "gradients")
    if set(ours) != set(theirs):
        sys.exit(f"{name}: gradients of different tensors: {sorted(set(ours) ^ set(theirs))}")
    for tensor, gradient in theirs.items():
        # A key's bias has no gradient in exact arithmetic: what is there is rounding, measured by its query's.
        reference = theirs[tensor.replace(".key.", ".query.")] if tensor.endswith("key.bias") else gradient
        worst[tensor] = compare(f"{name}: gradient of {tensor}", ours[tensor], gradient, reference.abs().max().item())

    loaded, report = ViTForImageClassification.from_pretrained(folder / "ours", output_loading_info=True)
    if any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")):
        sys.exit(f"{name}: transformers does not load the export: {report}")
    if loaded.config.num_labels != config.num_labels or loaded.dtype != torch.float32:
        sys.exit(f"{name}: the export has {loaded.config.num_labels} classes in {loaded.dtype}")
    with torch.no_grad():
        again = loaded.eval()(pixel_values=images).logits
    if not torch.equal(again, result.logits.detach()):
        sys.exit(f"{name}: logits of the export differ by {(again - result.logits).abs().max().item():.3g}")
    tensor = max(worst, key=worst.get)
    print(f"{name}: {len(theirs)} gradients, worst difference {worst[tensor]:.2g} of the largest value ({tensor})")


def check_headless(probe, folder):
    """A ViTModel's file, as vit-huge-patch14-224-in21k: no `vit.` prefix, a pooler, no classifier, no classes."""
    config = ViTConfig(**{**CASES["small"], "num_labels": 2})
    body = ViTModel(config)
    body.save_pretrained(folder / "theirs")
    as_published(folder / "theirs")
    images = torch.randn(2, 1, 8, 8)
    save_file({"pixel_values": images, "labels": torch.zeros(2)}, folder / "input.safetensors")
    done = subprocess.run([probe, folder / "theirs", folder / "input.safetensors", folder / "output.safetensors",
                           folder / "ours"], check=True, capture_output=True, text=True)
    for words in ("has no classifier; a new head for 2 classes", "not used by this model: pooler.dense.bias, pooler.dense.weight"):
        if words not in done.stdout:
            sys.exit(f"headless: '{words}' is not among the notes:\n{done.stdout}")
    loaded = ViTForImageClassification.from_pretrained(folder / "ours").eval()
    for tensor, value in loaded.vit.state_dict().items():
        if not torch.equal(value, body.state_dict()[tensor]):
            sys.exit(f"headless: {tensor} of the export is not that of the file")
    with torch.no_grad():
        compare("headless: logits", load_file(folder / "output.safetensors")["logits"], loaded(pixel_values=images).logits)
    print("headless: loads with a new head")


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    probe = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as root:
        for index, (name, sizes) in enumerate(CASES.items()):
            folder = Path(root) / str(index)
            folder.mkdir()
            check(probe, name, sizes, folder)
        for name, options in {"sharded": dict(max_shard_size="20KB"), "published": dict(change=as_published),
                              "transformers 5 names": dict(save_original_format=False)}.items():
            folder = Path(root) / name.replace(" ", "-")
            folder.mkdir()
            check(probe, name, CASES["small"], folder, **options)
        folder = Path(root) / "headless"
        folder.mkdir()
        check_headless(probe, folder)


main()
