"""A Vision Transformer trained from a Hugging Face folder on image files has the losses of transformers: model and preparation of the images are
what the folder says, pixel for pixel, in training, evaluation and export."""
import copy
import json
import pathlib
import tempfile

try:
    import numpy
    import torch
    import transformers
    from PIL import Image
    from transformers import (CLIPConfig, CLIPForImageClassification, CLIPImageProcessorPil, DeiTConfig, DeiTForImageClassification, Dinov2Config,
                              Dinov2ForImageClassification, SiglipConfig, SiglipForImageClassification, SiglipImageProcessorPil)
    from transformers import BitImageProcessorPil, DeiTImageProcessorPil, ViTConfig, ViTForImageClassification, ViTImageProcessorPil
except ImportError as missing:
    print(f"skipped: {missing}")
    raise SystemExit(77)

from support import expect_success, losses, metrics, only_run, run

DECAY, CLIP = 0.01, 1.0
CLASSES = ("cat", "dog", "eel")
HALF = [0.5, 0.5, 0.5]


def write_images(folder):
    """Pictures of many sizes as JPEG and PNG, in a folder per class; the test split holds the same ones."""
    draw = numpy.random.default_rng(0)
    files = []
    for label, name in enumerate(CLASSES):
        for i, (width, height) in enumerate([(61, 47), (32, 32), (130, 91), (40, 211), (33, 34), (400, 290)]):
            coarse = Image.fromarray(draw.integers(0, 256, (5, 7, 3), dtype=numpy.uint8)).resize((width, height), Image.BICUBIC)
            noisy = numpy.clip(numpy.asarray(coarse) + draw.integers(-20, 21, (height, width, 3)), 0, 255).astype(numpy.uint8)
            for split in ("train", "test"):
                path = folder / split / name / f"{i}.{'jpg' if i % 3 else 'png'}"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(noisy).save(path, **({"quality": 90, "subsampling": i % 3} if i % 3 else {}))
            files.append((path, label))
    return files


def pixel_values(processor, files):
    return processor([Image.open(path).convert("RGB") for path, _ in files], return_tensors="pt")["pixel_values"].float()


def expected_losses(model, pixels, labels, steps, lr):
    """Before each step, and after the last one; every step sees all images."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=DECAY)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(pixel_values=pixels, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        found.append(loss.item())
    with torch.no_grad():
        return found, model(pixel_values=pixels, labels=labels).loss.item()


VISION = dict(hidden_size=48, num_hidden_layers=2, num_attention_heads=3, image_size=32, patch_size=8)
TOWER = dict(vision_config={**VISION, "intermediate_size": 96}, num_labels=len(CLASSES),
             text_config=dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=20, bos_token_id=1, eos_token_id=2))
CROP = BitImageProcessorPil(size={"shortest_edge": 36}, crop_size={"height": 24, "width": 24})
# Steps, learning rate, how far losses may be apart and whether that is a share of the first loss, which stays large.
PREPARED, FAMILY = (10, 1e-3, 1e-5, False), (20, 3e-4, 1e-6, True)
# Configuration, class and processor; DINOv2's positions are for other images than those that its processor makes.
FAMILIES = {
    "deit": (DeiTConfig(**VISION, intermediate_size=96, num_labels=len(CLASSES)), DeiTForImageClassification,
             DeiTImageProcessorPil(size={"height": 38, "width": 38}, crop_size={"height": 32, "width": 32})),
    "dinov2": (Dinov2Config(**VISION, mlp_ratio=2, num_labels=len(CLASSES)), Dinov2ForImageClassification, CROP),
    "dinov2_gated": (Dinov2Config(**{**VISION, "image_size": 16}, mlp_ratio=2, use_swiglu_ffn=True, num_labels=len(CLASSES)), Dinov2ForImageClassification, CROP),
    "clip": (CLIPConfig(**TOWER), CLIPForImageClassification,
             CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})),
    "siglip": (SiglipConfig(**TOWER), SiglipForImageClassification, SiglipImageProcessorPil(size={"height": 32, "width": 32})),
}


def check(name, processor, scratch, files, config=None, kind=ViTForImageClassification, run_of=PREPARED):
    steps, lr, tolerance, of_first = run_of
    config = config or ViTConfig(**VISION, intermediate_size=96, num_labels=len(CLASSES))
    config._attn_implementation = "eager"
    model = kind(config).train()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1 and config.model_type in ("vit", "deit", "dinov2"):
                parameter.mul_(5)  # so that predictions differ from the first step on
    folder = scratch / name
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    pixels, labels = pixel_values(processor, files), torch.tensor([label for _, label in files])
    trained = copy.deepcopy(model)
    expected, evaluated = expected_losses(trained, pixels, labels, steps, lr)
    recipe = scratch / f"{name}.yaml"
    recipe.write_text(f"""
model:     {{ weights: "{folder}" }}
data:      {{ name: images, path: "{scratch / 'data'}" }}
batch:     {{ global: {len(files)}, micro: 3 }}
optimizer: {{ lr: {lr}, weight_decay: {DECAY}, clip_norm: {CLIP}, schedule: constant }}
precision: {{ compute: fp32 }}
parallel:  {{ zero: {{ stage: 2 }}, backend: gloo }}
run:       {{ steps: {steps}, evaluate: {steps}, checkpoint: {{ every: {steps} }}, output: "{scratch / (name + '_runs')}" }}
""")
    shown = expect_success(run("recipe", "show", recipe))
    assert f"name: {config.model_type} " in shown and f"# {folder / 'preprocessor_config.json'}" in shown, shown
    expect_success(run("plan", recipe))
    output = expect_success(run("launch", recipe, "--ranks", 2))
    assert "images: " in output, output
    directory = only_run(scratch / (name + "_runs"))
    curve = losses(directory)
    assert sorted(curve) == list(range(1, steps + 1)), curve
    apart = max(abs(curve[step + 1] - loss) / (expected[0] if of_first else loss) for step, loss in enumerate(expected))
    assert apart <= tolerance, (name, apart, curve, expected)
    assert expected[-1] < 0.9 * expected[0], expected
    found = metrics(directory, "evaluation")[steps]["loss"]
    assert abs(found - evaluated) <= tolerance * (expected[0] if of_first else evaluated), (name, found, evaluated)

    # What is exported prepares the same pixels and has the same loss.
    exported = scratch / (name + "_exported")
    expect_success(run("checkpoint", "export", directory, exported))
    prepares = json.loads((exported / "preprocessor_config.json").read_text())["image_processor_type"]
    again = pixel_values(getattr(transformers, prepares + "Pil").from_pretrained(exported), files)
    assert (again - pixels).abs().max() <= 1e-6, (name, prepares, (again - pixels).abs().max())
    loaded, report = kind.from_pretrained(exported, output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), (name, report)
    loaded.eval()
    with torch.no_grad():
        loss = loaded(pixel_values=again, labels=labels).loss.item()
    assert abs(loss - evaluated) <= tolerance * (expected[0] if of_first else evaluated), (name, loss, evaluated)
    print(f"{name}: losses of {steps} steps within {apart:.2g}, {expected[0]:.4f} to {expected[-1]:.4f}; evaluation {found:.6f}")


with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    files = write_images(scratch / "data")
    for name, processor in (
            ("half", ViTImageProcessorPil(size={"height": 32, "width": 32}, image_mean=HALF, image_std=HALF)),
            ("bicubic", ViTImageProcessorPil(size={"height": 32, "width": 32}, resample=3, image_mean=[0.4, 0.5, 0.6], image_std=[0.2, 0.3, 0.4])),
            ("raw", ViTImageProcessorPil(size={"height": 32, "width": 32}, rescale_factor=1 / 127.5, do_normalize=False)),
            ("crop", BitImageProcessorPil(size={"shortest_edge": 39}, crop_size={"height": 32, "width": 32}, resample=1)),
            ("deit", DeiTImageProcessorPil(size={"height": 38, "width": 38}, crop_size={"height": 32, "width": 32}))):
        check(name, processor, scratch, files)
    for name, (config, kind, processor) in FAMILIES.items():
        check(f"family_{name}", processor, scratch, files, config, kind, FAMILY)
