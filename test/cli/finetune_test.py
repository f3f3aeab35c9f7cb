"""The recipe of a fine-tuning in two phases, at 40 pixels and with few photographs: weights of timm with a new head, then all weights. Killed in
each phase and resumed, its losses and weights are those of the unbroken run; its export gives timm the logits that its own evaluation had, and the
average of the weights is the one that PyTorch makes of the weights after each third step."""
import json
import os
import pathlib
import signal
import tempfile
import time

try:
    import numpy
    import timm
    import torch
    from PIL import Image
    from safetensors.torch import load_file, save_file
    from timm.data import create_transform, resolve_data_config
except ImportError as missing:
    print(f"skipped: {missing}")
    raise SystemExit(77)

from support import expect_success, losses, metrics, only_run, rank_processes, run, start

os.environ["HF_HUB_OFFLINE"] = "1"
RECIPE = "recipes/cnn/mobilenet-v2_food101_finetune.yaml"
CLASSES, TRAIN, TEST, PIXELS = ("apple", "bread", "cake"), 12, 4, 40
EVERY, BOUNDARY, STEPS, DECAY = 3, 9, 18, 0.9  # 3 steps an epoch
TINY = ["model.classes=3", "data.workers=1", "batch.global=12", "batch.micro=3", "precision.compute=fp32", "optimizer.label_smoothing=0",
        "phases.0.epochs=3", "phases.1.epochs=3", "phases.1.warmup_steps=2", f"ema.decay={DECAY}", f"ema.every={EVERY}", "parallel.backend=gloo",
        f"run.checkpoint.every={EVERY}", "run.checkpoint.keep=100"]


def write_photographs(folder):
    """Food-101's layout, with pictures that have the colour of their class."""
    draw = numpy.random.default_rng(3)
    lists = {"train": [], "test": []}
    for label, name in enumerate(CLASSES):
        (folder / "images" / name).mkdir(parents=True)
        for i in range(TRAIN + TEST):
            width, height = draw.integers(45, 90, 2)
            pixels = draw.integers(0, 160, (height, width, 3), dtype=numpy.uint8)
            pixels[..., label] += 80
            Image.fromarray(pixels).save(folder / "images" / name / f"{i}.jpg", quality=90)
            lists["train" if i < TRAIN else "test"].append(f"{name}/{i}")
    (folder / "meta").mkdir()
    (folder / "meta" / "classes.txt").write_text("\n".join(CLASSES) + "\n")
    for split, names in lists.items():
        (folder / "meta" / f"{split}.txt").write_text("\n".join(names) + "\n")
    return [(folder / "images" / f"{name}.jpg", CLASSES.index(name.split("/")[0])) for name in lists["test"]]


def write_weights(folder):
    torch.manual_seed(5)
    state = timm.create_model("mobilenetv2_100", num_classes=7).state_dict()
    folder.mkdir()
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, folder / "model.safetensors")
    about = {"input_size": [3, PIXELS, PIXELS], "interpolation": "bicubic", "crop_pct": 0.875, "mean": [0.48, 0.46, 0.41], "std": [0.23, 0.22, 0.24],
             "num_classes": 7}
    (folder / "config.json").write_text(json.dumps({"architecture": "mobilenetv2_100", "num_classes": 7, "pretrained_cfg": about}))
    return state


def kill_a_rank(output, settings, step, *more):
    """Starts or resumes the run, and kills a rank as soon as the checkpoint of `step` is there."""
    process = start("launch", RECIPE, "--ranks", 2, *settings, "--set", f"run.output={output}", *more)
    killed = False
    while process.poll() is None and not killed:
        for directory in output.glob(f"*/checkpoints/step-{step:08}"):
            ranks = rank_processes(directory.parents[1])
            if 1 in ranks:
                os.kill(ranks[1], signal.SIGKILL)
                killed = True
        time.sleep(0.002)
    text = process.communicate(timeout=120)[0]
    assert killed and process.returncode != 0, text
    return max(int(path.name.split("-")[1]) for path in (only_run(output) / "checkpoints").iterdir() if path.name.startswith("step-"))


def exported(folder, *options):
    source, *options = options
    text = expect_success(run("checkpoint", "export", source, folder, *options))
    assert "under the names of timm" in text, text  # as in the folder that the run began from
    return load_file(folder / "model.safetensors")


def check_timm(folder, tests, row, key, accuracy):
    """timm, from the folder alone, finds the loss and accuracy of the run's evaluation."""
    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    about = resolve_data_config({}, model=model)
    assert list(about["input_size"]) == [3, PIXELS, PIXELS] and list(about["mean"]) == [0.48, 0.46, 0.41], about
    assert list(model.pretrained_cfg["label_names"]) == list(CLASSES), model.pretrained_cfg
    transform = create_transform(**about, is_training=False)
    with torch.no_grad():
        logits = model(torch.stack([transform(Image.open(path).convert("RGB")) for path, _ in tests]))
    labels = torch.tensor([label for _, label in tests])
    loss = torch.nn.functional.cross_entropy(logits, labels).item()
    assert abs(loss - row[key]) <= 1e-5 * loss, (loss, row)
    assert (logits.argmax(1) == labels).double().mean().item() == row[accuracy], row


torch.set_num_threads(1)
with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    tests = write_photographs(scratch / "data" / "food-101")
    base = write_weights(scratch / "base")
    settings = [word for s in [*TINY, f"model.weights={scratch / 'base'}", f"data.path={scratch / 'data' / 'food-101'}"] for word in ("--set", s)]

    text = expect_success(run("launch", RECIPE, "--ranks", 2, *settings, "--set", f"run.output={scratch / 'whole'}"))
    assert "phase 1 of 2: 3 epochs, lr 0.1, frozen features.*" in text and "phase 2 of 2: 3 epochs, lr 0.02" in text, text
    whole = only_run(scratch / "whole")
    expected, evaluations = losses(whole), metrics(whole, "evaluation")
    assert sorted(expected) == list(range(1, STEPS + 1)), expected
    assert sorted(evaluations) == list(range(EVERY, STEPS + 1, EVERY)), evaluations

    output = scratch / "killed"
    newest = kill_a_rank(output, settings, EVERY)
    assert newest < BOUNDARY, newest
    killed = only_run(output)
    newest = kill_a_rank(output, settings, BOUNDARY + EVERY, "--resume", killed)
    assert BOUNDARY < newest < STEPS, newest
    expect_success(run("launch", RECIPE, "--ranks", 2, *settings, "--set", f"run.output={output}", "--resume", killed))
    assert losses(killed) == expected, (losses(killed), expected)
    assert metrics(killed, "evaluation")[STEPS]["ema_loss"] == evaluations[STEPS]["ema_loss"]

    weights = {step: exported(scratch / f"step{step}", whole / f"checkpoints/step-{step:08}") for step in range(2 * EVERY, STEPS + 1, EVERY)}
    first = exported(scratch / "first", whole / f"checkpoints/step-{EVERY:08}", "--ema")
    last = exported(scratch / "last", whole, "--ema")
    trunk = [name for name in base if not name.startswith("classifier.") and not name.endswith("num_batches_tracked")]
    assert all(torch.equal(weights[BOUNDARY][name], base[name]) for name in trunk), "the trunk was frozen"
    assert not any(torch.equal(weights[STEPS][name], base[name]) for name in trunk), "then it was trained, its running statistics, too"
    for name, found in last.items():
        if name.endswith("num_batches_tracked"):
            continue
        average, size = first[name].double(), first[name].double().abs()
        for update, step in enumerate(sorted(weights), start=1):
            share = 1 - min(DECAY, (1 + update) / (10 + update))
            average += share * (weights[step][name].double() - average)
            size = torch.maximum(size, weights[step][name].double().abs())
        # Each update rounds three times in fp32.
        assert ((found.double() - average).abs() <= 3 * len(weights) * 2**-24 * size).all(), name
    assert any(not torch.equal(last[name], weights[STEPS][name]) for name in trunk)

    check_timm(scratch / f"step{STEPS}", tests, evaluations[STEPS], "loss", "accuracy")
    check_timm(scratch / "last", tests, evaluations[STEPS], "ema_loss", "ema_accuracy")
print("finetune: ok")
