"""dstrain's Vision Transformers (ViT, DeiT, DINOv2, the towers of CLIP and SigLIP) against transformers' ...ForImageClassification: logits, loss and every gradient on files that
save_pretrained wrote, and the same logits from what dstrain exports.

usage: hf_vit.py VIT_PROBE; exit code 77 where transformers is not installed."""

import json
import os
import sys
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import (CLIPConfig, CLIPForImageClassification, CLIPModel, DeiTConfig, DeiTForImageClassification,
                              DeiTForImageClassificationWithTeacher, Dinov2Config, Dinov2ForImageClassification, Dinov2Model, SiglipConfig,
                              SiglipForImageClassification, SiglipModel, ViTConfig, ViTForImageClassification, ViTModel)
except ImportError as error:
    print(f"skipped: this python has no transformers ({error}); scripts/test installs it")
    sys.exit(77)

from probes import Probe

TOLERANCE = 1e-5  # of the largest value of a tensor, fp32

CASES = {
    "small": dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=8,
                  patch_size=2, num_channels=1, num_labels=10),
    "odd sizes": dict(hidden_size=48, num_hidden_layers=3, num_attention_heads=3, intermediate_size=80, image_size=28,
                      patch_size=14, num_channels=3, num_labels=7, layer_norm_eps=1e-6),
    "one layer": dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=1, intermediate_size=16, image_size=6,
                      patch_size=3, num_channels=2, num_labels=2),
}

SMALL, ODD = CASES["small"], CASES["odd sizes"]
RATIO = {key: value for key, value in SMALL.items() if key != "intermediate_size"}
TEXT = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=20, bos_token_id=1, eos_token_id=2)


def tower(config, sizes, **more):
    """A model of two towers; the one for images has these sizes."""
    vision = {key: value for key, value in sizes.items() if key != "num_labels"}
    return config(vision_config={**vision, **more}, text_config=TEXT, num_labels=sizes["num_labels"])


# Configuration, class, and pixels of the images where they are not those of the positions.
FAMILIES = {
    "deit": (DeiTConfig(**SMALL), DeiTForImageClassification, None),
    "deit, odd sizes": (DeiTConfig(**ODD), DeiTForImageClassification, None),
    "dinov2": (Dinov2Config(**RATIO, mlp_ratio=2), Dinov2ForImageClassification, None),
    "dinov2, smaller images": (Dinov2Config(**{**RATIO, "image_size": 14}, mlp_ratio=3), Dinov2ForImageClassification, 8),
    "dinov2, larger images": (Dinov2Config(**RATIO, mlp_ratio=3, use_mask_token=False), Dinov2ForImageClassification, 12),
    "dinov2, gated": (Dinov2Config(**RATIO, mlp_ratio=3, use_swiglu_ffn=True, layer_norm_eps=1e-5), Dinov2ForImageClassification, None),
    "clip": (tower(CLIPConfig, SMALL), CLIPForImageClassification, None),
    "clip, gelu": (tower(CLIPConfig, ODD, hidden_act="gelu"), CLIPForImageClassification, None),
    "siglip": (tower(SiglipConfig, SMALL), SiglipForImageClassification, None),
    "siglip, a rest of pixels": (tower(SiglipConfig, {**SMALL, "image_size": 11, "patch_size": 3}), SiglipForImageClassification, None),
    "siglip, no pooling head": (tower(SiglipConfig, ODD, vision_use_head=False), SiglipForImageClassification, None),
}


def randomize(model):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread = torch.randn_like(parameter) * 0.2
            scales = name.endswith("lambda1") or "norm" in name and name.endswith("weight")
            parameter.copy_(1 + spread if scales else spread)
    return model.eval()


def random_model(config, kind=ViTForImageClassification):
    return randomize(kind(config))


def compare(what, ours, theirs, scale=None):
    scale = theirs.abs().max().item() if scale is None else scale
    difference = (ours - theirs).abs().max().item()
    if ours.shape != theirs.shape or not difference <= TOLERANCE * scale:
        sys.exit(f"{what}: differs by {difference:.3g}, allowed {TOLERANCE * scale:.3g} (shapes {ours.shape}, {theirs.shape})")
    return difference / scale


def file_gradients(model, config, folder):
    """Gradients under the names that save_pretrained gives the tensors: saved as if they were weights."""
    gradients = type(model)(config)
    with torch.no_grad():
        for parameter, source in zip(gradients.parameters(), model.parameters()):
            parameter.copy_(torch.nan if source.grad is None else source.grad)
    gradients.save_pretrained(folder)
    return {name: value for name, value in load_file(folder / "model.safetensors").items() if not value.isnan().all()}


PUBLISHED_FIELDS = ("architectures", "attention_probs_dropout_prob", "hidden_act", "hidden_dropout_prob", "hidden_size",
                    "id2label", "image_size", "initializer_range", "intermediate_size", "label2id", "layer_norm_eps",
                    "model_type", "num_attention_heads", "num_channels", "num_hidden_layers", "patch_size", "qkv_bias")


def as_published(folder):
    """Leaves in config.json what google/vit-base-patch16-224 and vit-huge-patch14-224-in21k have there."""
    config = json.loads((folder / "config.json").read_text())
    config = {key: config[key] for key in PUBLISHED_FIELDS if key in config} | {"transformers_version": "4.13.0.dev0"}
    (folder / "config.json").write_text(json.dumps(config))


def check(probe, name, sizes, folder, change=None, kind=ViTForImageClassification, pixels=None, **save_options):
    config = sizes if kind is not ViTForImageClassification else ViTConfig(**sizes)
    model = random_model(config, kind)
    model.save_pretrained(folder / "theirs", **save_options)
    if change is not None:
        change(folder / "theirs")
    vision = getattr(config, "vision_config", config)
    size = pixels or vision.image_size
    images = torch.randn(5, vision.num_channels, size, size)
    labels = torch.randint(config.num_labels, (5,))
    inputs = {"pixel_values": images, "labels": labels.float()}
    save_file(inputs if pixels is None else inputs | {"resized": torch.zeros(1)}, folder / "input.safetensors")
    probe.run(folder / "theirs", folder / "input.safetensors", folder / "output.safetensors", folder / "ours", check=True)

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
        of_query = tensor.replace(".key.", ".query.").replace("k_proj", "q_proj")
        reference = theirs[of_query] if tensor.endswith(("key.bias", "k_proj.bias")) else gradient
        worst[tensor] = compare(f"{name}: gradient of {tensor}", ours[tensor], gradient, reference.abs().max().item())

    loaded, report = kind.from_pretrained(folder / "ours", output_loading_info=True)
    if any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")):
        sys.exit(f"{name}: transformers does not load the export: {report}")
    if loaded.config.num_labels != config.num_labels or loaded.dtype != torch.float32:
        sys.exit(f"{name}: the export has {loaded.config.num_labels} classes in {loaded.dtype}")
    with torch.no_grad():
        again = loaded.eval()(pixel_values=images).logits
    if not torch.equal(again, result.logits.detach()):
        sys.exit(f"{name}: logits of the export differ by {(again - result.logits).abs().max().item():.3g}")
    for tensor, value in load_file(folder / "theirs" / "model.safetensors").items() if not save_options else ():
        if ".head." not in tensor and not torch.equal(load_file(folder / "ours" / "model.safetensors")[tensor], value):
            sys.exit(f"{name}: {tensor} of the export is not that of the file")
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
    done = probe.run(folder / "theirs", folder / "input.safetensors", folder / "output.safetensors", folder / "ours", check=True)
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


def check_two_heads(probe, folder):
    """Both heads of a model with a teacher answer; training goes on with the class token's."""
    config = DeiTConfig(**SMALL)
    model = random_model(config, DeiTForImageClassificationWithTeacher)
    model.save_pretrained(folder / "theirs")
    images = torch.randn(3, 1, 8, 8)
    save_file({"pixel_values": images, "labels": torch.zeros(3)}, folder / "input.safetensors")
    command = [folder / "theirs", folder / "input.safetensors", folder / "output.safetensors", folder / "ours"]
    with torch.no_grad():
        expected = model(pixel_values=images)
    probe.run(*command, "answers", check=True)
    compare("two heads: answers", load_file(folder / "output.safetensors")["logits"], expected.logits)
    done = probe.run(*command, check=True)
    for words in ("two heads answer together; training goes on with that of the class token alone",
                  "not used by this model: distillation_classifier.bias, distillation_classifier.weight"):
        if words not in done.stdout:
            sys.exit(f"two heads: '{words}' is not among the notes:\n{done.stdout}")
    compare("two heads: training", load_file(folder / "output.safetensors")["logits"], expected.cls_logits)
    loaded, report = DeiTForImageClassification.from_pretrained(folder / "ours", output_loading_info=True)
    if any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")):
        sys.exit(f"two heads: transformers does not load the export: {report}")
    with torch.no_grad():
        if not torch.equal(loaded.eval()(pixel_values=images).logits, expected.cls_logits):
            sys.exit("two heads: the export is not the class token's head")
    print("two heads: both answer, one is trained")


def check_other_head(probe, name, config, kind, trained, unused, folder):
    """A model without classifier, perhaps one of two towers, begins a classifier."""
    body = randomize(kind(config))
    body.save_pretrained(folder / "theirs")
    vision = getattr(config, "vision_config", config)
    images = torch.randn(2, vision.num_channels, vision.image_size, vision.image_size)
    save_file({"pixel_values": images, "labels": torch.zeros(2)}, folder / "input.safetensors")
    done = probe.run(folder / "theirs", folder / "input.safetensors", folder / "output.safetensors", folder / "ours", check=True)
    for words in ("has no classifier; a new head for 2 classes", *unused):
        if words not in done.stdout:
            sys.exit(f"{name}: '{words}' is not among the notes:\n{done.stdout}")
    loaded, report = trained.from_pretrained(folder / "ours", output_loading_info=True)
    if any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")):
        sys.exit(f"{name}: transformers does not load the export: {report}")
    with torch.no_grad():
        compare(f"{name}: logits", load_file(folder / "output.safetensors")["logits"], loaded.eval()(pixel_values=images).logits)
    print(f"{name}: begins a classifier")


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    probe = Probe(sys.argv[1])
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
        for index, (name, (config, kind, pixels)) in enumerate(FAMILIES.items()):
            folder = Path(root) / f"family-{index}"
            folder.mkdir()
            check(probe, name, config, folder, kind=kind, pixels=pixels)
        for name in ("deit", "dinov2"):
            folder = Path(root) / f"{name}-in-memory"
            folder.mkdir()
            config, kind, _ = FAMILIES[name]
            check(probe, f"{name}, transformers 5 names", config, folder, kind=kind, save_original_format=False)
        for name, config, kind, trained, unused in (
                ("dinov2 body", Dinov2Config(**{**RATIO, "num_labels": 2}, mlp_ratio=2), Dinov2Model, Dinov2ForImageClassification, ()),
                ("clip of two towers", tower(CLIPConfig, {**SMALL, "num_labels": 2}), CLIPModel, CLIPForImageClassification,
                 ("not used by this model: logit_scale, text_model.embeddings.position_embedding.weight, ", ", and 3 more")),
                ("siglip of two towers", tower(SiglipConfig, {**SMALL, "num_labels": 2}), SiglipModel, SiglipForImageClassification,
                 ("not used by this model: logit_bias, logit_scale, text_model.embeddings.position_embedding.weight, ", " more"))):
            folder = Path(root) / name.replace(" ", "-")
            folder.mkdir()
            check_other_head(probe, name, config, kind, trained, unused, folder)
        folder = Path(root) / "two-heads"
        folder.mkdir()
        check_two_heads(probe, folder)
        folder = Path(root) / "headless"
        folder.mkdir()
        check_headless(probe, folder)


main()
