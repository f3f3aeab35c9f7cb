"""dstrain's convolutional models against torchvision's and timm's: names and shapes of all tensors, logits in evaluation and
training, loss, every gradient and the running statistics after three steps, and files both ways.

Both compute in fp32, and are held against torchvision in fp64: dstrain may be at most 4 times as far away as torchvision.

usage: torchvision_cnn.py CNN_PROBE; exit code 77 where torchvision or timm is not installed."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import timm
    import torch
    import torchvision
    from safetensors.torch import load_file, save_file
except ImportError as error:
    print(f"skipped: this python has no torchvision and timm ({error}); scripts/setup --tests installs them")
    sys.exit(77)

FACTOR = 4      # of torchvision's own distance from fp64
FLOOR = 4e-7    # of the largest value of a tensor, for those that torchvision happens to hit exactly
STEPS = 3

# dstrain's name: torchvision's, timm's
NAMES = {"resnet18": ("resnet18", "resnet18"), "resnet50": ("resnet50", "resnet50"),
         "mobilenet-v2": ("mobilenet_v2", "mobilenetv2_100"),
         **{f"vgg{n}{norm}": (f"vgg{n}{norm.replace('-', '_')}",) * 2 for n in (11, 13, 16, 19) for norm in ("", "-bn")}}
# Model, pixels, samples, classes, whose names the file has.
CASES = [("cnn-basic", 20, 6, 10, "torchvision"), ("resnet18", 64, 4, 10, "torchvision"), ("resnet50", 64, 4, 7, "timm"),
         ("mobilenet-v2", 64, 4, 10, "timm"), ("vgg11", 32, 2, 5, "timm"), ("vgg11-bn", 40, 4, 5, "torchvision")]


class BasicCnn(torch.nn.Module):
    """cnn-basic as its description reads."""

    def __init__(self, classes):
        super().__init__()
        channels = (3, 32, 64, 128)
        for i in range(3):
            stage = torch.nn.Module()
            stage.conv = torch.nn.Conv2d(channels[i], channels[i + 1], 3, padding=1, bias=False)
            stage.norm = torch.nn.BatchNorm2d(channels[i + 1])
            setattr(self, f"stage{i + 1}", stage)
        self.classifier = torch.nn.Linear(128, classes)

    def forward(self, x):
        for stage in (self.stage1, self.stage2, self.stage3):
            x = torch.nn.functional.max_pool2d(torch.relu(stage.norm(stage.conv(x))), 2)
        return self.classifier(x.mean((2, 3)))


def make(name, classes):
    """Without dropout, whose masks differ."""
    if name == "cnn-basic":
        return BasicCnn(classes)
    model = torchvision.models.get_model(NAMES[name][0], num_classes=classes)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


def randomize(model):
    """Norms that change something, and running statistics of another data set."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.weight.uniform_(0.5, 1.5)
                module.bias.uniform_(-0.5, 0.5)
                module.running_mean.uniform_(-0.5, 0.5)
                module.running_var.uniform_(0.5, 2)
            elif isinstance(module, (torch.nn.Conv2d, torch.nn.Linear)) and module.bias is not None:
                module.bias.uniform_(-0.1, 0.1)


def fail(text):
    sys.exit(text)


def check_names(probe):
    for name, (theirs, timms) in NAMES.items():
        lines = [line.split() for line in
                 subprocess.run([probe, "list", name], check=True, capture_output=True, text=True).stdout.splitlines()]
        shape = lambda text: tuple(int(n) for n in text.strip("[]").split(",") if n)  # noqa: E731
        with torch.device("meta"):
            expected = (torchvision.models.get_model(theirs), timm.create_model(timms))
        for whose, state, column in zip(("torchvision", "timm"), (m.state_dict() for m in expected), (0, 1)):
            ours = {line[column]: shape(line[column + 2]) for line in lines}
            wanted = {key: tuple(value.shape) for key, value in state.items()}
            if ours != wanted:
                fail(f"{name}: not {whose}'s tensors: {sorted(set(ours.items()) ^ set(wanted.items()))[:6]}")
    print(f"{len(NAMES)} models have the names and shapes of torchvision and timm")


def results(model, images, labels):
    """What the probe writes, by torch, under the same names."""
    found = {}
    with torch.no_grad():
        found["eval"] = model.eval()(images[0])
    model.train()
    logits = model(images[0])
    found["train"] = logits.detach()
    loss = torch.nn.functional.cross_entropy(logits, labels[0].long())
    loss.backward()
    found["loss"] = loss.detach()
    found.update({name: parameter.grad for name, parameter in model.named_parameters()})
    with torch.no_grad():
        for step in range(1, STEPS):
            model(images[step])
    found.update({name: buffer.clone() for name, buffer in model.named_buffers()})
    return {name: tensor.double() for name, tensor in found.items()}


def distance(found, exact):
    return ((found.double() - exact).abs().max() / exact.abs().max().clamp_min(1e-30)).item()


def timm_model(name, classes):
    return timm.create_model(NAMES[name][1], num_classes=classes)


def check(probe, name, pixels, samples, classes, whose, folder):
    torch.manual_seed(0)
    model = make(name, classes)
    randomize(model)
    images = torch.randn(STEPS, samples, 3, pixels, pixels)
    labels = torch.randint(classes, (STEPS, samples)).float()
    theirs = folder / "theirs"
    theirs.mkdir()
    state = model.state_dict()
    if whose == "timm":
        listing = [line.split() for line in
                   subprocess.run([probe, "list", name], check=True, capture_output=True, text=True).stdout.splitlines()]
        head = dict(state)
        reference = timm_model(name, classes)
        state = {}
        for ours, renamed, _, _ in listing:
            state[renamed] = head[ours].reshape(reference.state_dict()[renamed].shape)
        reference.load_state_dict(state)
        del reference
        (theirs / "config.json").write_text(json.dumps({"architecture": NAMES[name][1], "num_classes": classes}))
    save_file({key: value.contiguous() for key, value in state.items()}, theirs / "model.safetensors")
    save_file({"images": images, "labels": labels}, folder / "input.safetensors")
    subprocess.run([probe, "run", name, str(pixels), str(classes), theirs, folder / "input.safetensors",
                    folder / "output.safetensors", folder / "ours", folder / "ours-timm"], check=True)
    start = {key: value.clone() for key, value in model.state_dict().items()}
    fp32 = results(model, images, labels)
    model.load_state_dict(start)
    model.zero_grad()
    exact = results(model.double(), images.double(), labels)
    ours = load_file(folder / "output.safetensors")
    if set(ours) != set(exact):
        fail(f"{name}: other tensors: {sorted(set(ours) ^ set(exact))[:6]}")
    worst, worst_name = 0.0, ""
    for key, value in exact.items():
        if ours[key].shape != value.shape:
            fail(f"{name}: {key} is {ours[key].shape}, not {value.shape}")
        allowed = max(FACTOR * distance(fp32[key], value), FLOOR)
        share = distance(ours[key], value) / allowed
        if share > worst:
            worst, worst_name = share, key
        if not share <= 1:
            fail(f"{name}: {key} differs from fp64 by {distance(ours[key], value):.3g} of its largest value, torchvision's fp32 "
                 f"by {distance(fp32[key], value):.3g}")

    # Both opened by their library give the statistics that our steps have left, and equal logits.
    again = make(name, classes).eval()
    again.load_state_dict(load_file(folder / "ours" / "model.safetensors"))
    pictures = images[0]
    with torch.no_grad():
        by_torchvision = again(pictures)
    if name in NAMES:
        opened = timm.create_model(f"local-dir:{folder / 'ours-timm'}", pretrained=True).eval()
        with torch.no_grad():
            by_timm = opened(pictures)
        if distance(by_timm, by_torchvision.double()) > 1e-5:
            fail(f"{name}: timm and torchvision differ on what was exported by {distance(by_timm, by_torchvision.double()):.3g}")
    print(f"{name}: {len(exact)} tensors, at most {worst * FACTOR:.2g} times torchvision's distance from fp64 ({worst_name})", flush=True)


def main():
    torch.set_num_threads(1)
    probe = sys.argv[1]
    check_names(probe)
    wanted = sys.argv[2:]
    for case in CASES:
        if wanted and case[0] not in wanted:
            continue
        with tempfile.TemporaryDirectory() as folder:
            check(probe, *case, Path(folder))


main()
