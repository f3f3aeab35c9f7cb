"""dstrain's convolutional models against torchvision's and timm's: names and shapes of all tensors, logits in evaluation and
training, loss, every gradient and the running statistics after three steps, and files both ways.

Both compute in fp32, and are held against torchvision in fp64: of each tensor dstrain may be at most 4 times as far away as torchvision, which
counts at least with the median of its distances from tensors of the kind: of some it happens to be nearly exact.

usage: torchvision_cnn.py CNN_PROBE; exit code 77 where torchvision or timm is not installed."""

import json
import math
import os
import statistics
import sys
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"  # of the probe, too: threads that wait for work take time from other tests
try:
    import timm
    import torch
    import torchvision
    from safetensors.torch import load_file, save_file
except ImportError as error:
    print(f"skipped: this python has no torchvision and timm ({error}); scripts/setup --tests installs them")
    sys.exit(77)

from probes import Probe

FACTOR = 4      # of torchvision's own distance from fp64
STEPS = 3
FRAMES = 3      # of a clip
PART = 1 << 18  # elements
HARD = (torch.nn.Hardswish, torch.nn.Hardsigmoid)

# dstrain's name: torchvision's, timm's
NAMES = {"resnet18": ("resnet18", "resnet18"), "resnet50": ("resnet50", "resnet50"),
         "mobilenet-v2": ("mobilenet_v2", "mobilenetv2_100"),
         **{f"mobilenet-v3-{size}": (f"mobilenet_v3_{size}", f"mobilenetv3_{size}_100") for size in ("small", "large")},
         **{f"efficientnet-b{n}": (f"efficientnet_b{n}",) * 2 for n in range(5)},
         **{f"convnext-{size}": (f"convnext_{size}",) * 2 for size in ("tiny", "small", "base", "large")},
         **{f"vgg{n}{norm}": (f"vgg{n}{norm.replace('-', '_')}",) * 2 for n in (11, 13, 16, 19) for norm in ("", "-bn")}}
# Those that are timm's alone.
TIMM_NAMES = {**{f"tf-efficientnet-b{n}": f"tf_efficientnet_b{n}" for n in range(5)},
              **{f"timm-mobilenet-v3-{size}": f"mobilenetv3_{size}_100" for size in ("small", "large")}}
OTHER_NORMS = {f"mobilenet-v3-{size}": {"bn_eps": 1e-3, "bn_momentum": 0.01} for size in ("small", "large")}  # than timm's model of that shape
# Model, pixels, samples, classes, whose names the file has, margin that its values must have.
CASES = [("cnn-basic", 20, 6, 10, "torchvision", 1e-5), ("resnet18", 40, 4, 10, "torchvision", 1e-5), ("resnet50", 33, 4, 7, "timm", 3e-6),
         ("mobilenet-v2", 40, 4, 10, "timm", 1e-5), ("efficientnet-b0", 40, 4, 10, "torchvision", 0), ("tf-efficientnet-b0", 47, 3, 10, "timm", 0),
         ("mobilenet-v3-small", 64, 4, 10, "torchvision", 1e-6), ("timm-mobilenet-v3-large", 40, 4, 10, "timm", 1e-6),
         ("cnn-lstm:resnet18", 40, 3, 5, "torchvision", 1e-5), ("cnn-lstm:mobilenet-v2", 40, 3, 5, "torchvision", 3e-6), ("convnext-tiny", 33, 3, 7, "timm", 0), ("vgg11", 32, 2, 5, "timm", 2e-6), ("vgg11-bn", 40, 3, 5, "torchvision", 1e-5)]


class BasicCnn(torch.nn.Module):
    """cnn-basic as its description reads."""

    def __init__(self, classes):
        super().__init__()
        self.relu, self.pool = torch.nn.ReLU(), torch.nn.MaxPool2d(2)
        channels = (3, 32, 64, 128)
        for i in range(3):
            stage = torch.nn.Module()
            stage.conv = torch.nn.Conv2d(channels[i], channels[i + 1], 3, padding=1, bias=False)
            stage.norm = torch.nn.BatchNorm2d(channels[i + 1])
            setattr(self, f"stage{i + 1}", stage)
        self.classifier = torch.nn.Linear(128, classes)

    def forward(self, x):
        for stage in (self.stage1, self.stage2, self.stage3):
            x = self.pool(self.relu(stage.norm(stage.conv(x))))
        return self.classifier(x.mean((2, 3)))


class CnnLstm(torch.nn.Module):
    """torch.nn.LSTM over the features that torchvision's model has before its classifier; as the probe sizes it."""

    def __init__(self, trunk, classes):
        super().__init__()
        self.trunk = make(trunk, classes)
        last = list(self.trunk.named_children())[-1][0]
        features = [m for m in getattr(self.trunk, last).modules() if isinstance(m, torch.nn.Linear)][0].in_features
        setattr(self.trunk, last, torch.nn.Identity())
        self.lstm = torch.nn.LSTM(features, 24, num_layers=2, batch_first=True)
        self.classifier = torch.nn.Linear(24, classes)

    def forward(self, clips):
        features = self.trunk(clips.flatten(0, 1)).unflatten(0, clips.shape[:2])
        return self.classifier(self.lstm(features)[0][:, -1])


def make(name, classes):
    """Without dropout, whose masks differ."""
    if name.startswith("cnn-lstm:"):
        return CnnLstm(name.split(":")[1], classes)
    if name == "cnn-basic":
        return BasicCnn(classes)
    if name in TIMM_NAMES:
        return timm_model(name, classes)
    model = torchvision.models.get_model(NAMES[name][0], num_classes=classes)
    for module in model.modules():
        if isinstance(module, (torch.nn.Dropout, torchvision.ops.StochasticDepth)):
            module.p = 0.0
    return model


def randomize(model):
    """Norms that change something, with few values near the corner of a ReLU, and running statistics of another data set."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.weight.uniform_(0.3, 0.6)
                module.bias.uniform_(0.9, 1.5).mul_(torch.randint_like(module.bias, 2) * 2 - 1)
                module.running_mean.uniform_(-0.5, 0.5)
                module.running_var.uniform_(0.5, 2)
            elif isinstance(module, torch.nn.LayerNorm):
                module.weight.uniform_(0.5, 1.5)
                module.bias.uniform_(-0.5, 0.5)
            elif isinstance(module, torchvision.models.convnext.CNBlock):
                module.layer_scale.uniform_(0.2, 0.8)
            elif isinstance(module, (torch.nn.Conv2d, torch.nn.Linear)) and module.bias is not None:
                module.bias.uniform_(-0.1, 0.1)


def margin(model, images):
    """How near the values of a training step come to a corner of an activation, or to a tie in a window of a pool, over their
    deviation: rounding must not decide which side they are on."""
    nearest = [math.inf]

    def look(module, inputs):
        z = inputs[0].detach()
        if isinstance(module, torch.nn.MaxPool2d):
            size = dict(kernel_size=module.kernel_size, stride=module.stride, padding=module.padding)
            top = torch.nn.functional.unfold(z, **size).unflatten(1, (z.shape[1], -1)).topk(2, 2).values
            gaps = (top[:, :, 0] - top[:, :, 1])[top[:, :, 0] > 0]
        else:
            corners = (0, 6) if isinstance(module, torch.nn.ReLU6) else (-3, 3) if isinstance(module, HARD) else (0,)
            gaps = torch.cat([(z - corner).abs().flatten() for corner in corners])
        nearest[0] = min(nearest[0], (gaps.min() / z.std()).item())

    with_corners = (torch.nn.ReLU, torch.nn.ReLU6, torch.nn.MaxPool2d, *HARD)
    hooks = [module.register_forward_pre_hook(look) for module in model.modules() if isinstance(module, with_corners)]
    with torch.no_grad():
        model.train()(images)
    for hook in hooks:
        hook.remove()
    return nearest[0]


def fail(text):
    sys.exit(text)


def listings(probe):
    """{model: its config.json, and lines of our name, timm's, and their shapes}, for 1000 classes."""
    text = probe.run("list", *NAMES, *TIMM_NAMES, check=True).stdout
    found = {}
    for line in text.splitlines():
        model, rest = line.split(" ", 1)
        if rest.startswith("{"):
            found[model] = (json.loads(rest), [])
        else:
            found[model][1].append(rest.split())
    return found


def constants_of_norms(model):
    return {(module.eps, getattr(module, "momentum", None)) for module in model.modules() if hasattr(module, "eps")}


def check_names(listed):
    for name in [*NAMES, *TIMM_NAMES]:
        config, lines = listed[name]
        shape = lambda text: tuple(int(n) for n in text.strip("[]").split(",") if n)  # noqa: E731
        with torch.device("meta"):
            # As timm opens the folder of an export.
            opened = timm.create_model(config["architecture"], num_classes=config["num_classes"], **config.get("model_args", {}))
            expected = [("timm", opened, 1)]
            if name in NAMES:
                expected.append(("torchvision", torchvision.models.get_model(NAMES[name][0]), 0))
        for whose, reference, column in expected:
            ours = {line[column]: shape(line[column + 2]) for line in lines}
            wanted = {key: tuple(value.shape) for key, value in reference.state_dict().items()}
            if ours != wanted:
                fail(f"{name}: not {whose}'s tensors: {sorted(set(ours.items()) ^ set(wanted.items()))[:6]}")
            published = expected[-1][1] if name in NAMES else timm_model(name, 1000)
        if constants_of_norms(opened) != constants_of_norms(published):
            fail(f"{name}: config.json gives timm norms of {constants_of_norms(opened)}, not {constants_of_norms(published)}")
    print(f"{len(NAMES)} models have the names, shapes and norms of torchvision and timm, {len(TIMM_NAMES)} those of timm")


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
    return found


def distance(found, exact):
    """Relative, in fp64; in parts, since new memory for whole tensors takes longer than the sums."""
    difference, size = 0.0, 1e-60
    for f, e in zip(found.reshape(-1).split(PART), exact.reshape(-1).split(PART)):
        e = e.double()
        difference += (f.double() - e).square().sum().item()
        size += e.square().sum().item()
    return math.sqrt(difference / size)


def timm_name(name):
    return TIMM_NAMES[name] if name in TIMM_NAMES else NAMES[name][1]


def timm_model(name, classes):
    return timm.create_model(timm_name(name), num_classes=classes, **OTHER_NORMS.get(name, {}))


def check(probe, listed, name, pixels, samples, classes, whose, wanted_margin, folder):
    torch.manual_seed(0)
    model = make(name, classes)
    randomize(model)
    start = {key: value.clone() for key, value in model.state_dict().items()}
    model.double()
    for _ in range(40):
        images = torch.randn(STEPS, samples, *([FRAMES] if ":" in name else []), 3, pixels, pixels)
        if margin(model, images[0].double()) >= wanted_margin:
            break
    else:
        fail(f"{name}: no images without values near a corner")
    model.float().load_state_dict(start)
    labels = torch.randint(classes, (STEPS, samples)).float()
    weights = folder / "theirs"
    weights.mkdir()
    state = model.state_dict()
    if whose == "timm":
        (weights / "config.json").write_text(json.dumps({"architecture": timm_name(name), "num_classes": classes, "model_args": OTHER_NORMS.get(name, {})}))
    if whose == "timm" and name in NAMES:
        head = dict(state)
        with torch.device("meta"):
            shapes = {key: value.shape for key, value in timm_model(name, classes).state_dict().items()}
        state = {renamed: head[ours].reshape(shapes[renamed]) for ours, renamed, _, _ in listed[name][1]}
        if set(state) != set(shapes):
            fail(f"{name}: other tensors than timm's: {sorted(set(state) ^ set(shapes))[:6]}")
    save_file({key: value.contiguous() for key, value in state.items()}, weights / "model.safetensors")
    save_file({"images": images, "labels": labels}, folder / "input.safetensors")
    probe.run("run", name, pixels, classes, weights, folder / "input.safetensors", folder / "output.safetensors", folder / "ours", folder / "ours-timm",
              check=True)
    fp32 = results(model, images, labels)
    model.load_state_dict(start)
    model.zero_grad()
    exact = results(model.double(), images.double(), labels)
    ours = load_file(folder / "output.safetensors")
    if name in TIMM_NAMES:
        renamed = {line[0]: line[1] for line in listed[name][1]}
        ours = {renamed.get(key, key): value for key, value in ours.items()}
        ours = {key: value.reshape(exact[key].shape) if key in exact else value for key, value in ours.items()}
    if set(ours) != set(exact):
        fail(f"{name}: other tensors: {sorted(set(ours) ^ set(exact))[:6]}")
    theirs = {key: distance(fp32[key], value) for key, value in exact.items()}
    gradients, buffers = (set(name for name, _ in named) for named in (model.named_parameters(), model.named_buffers()))
    kind = lambda key: "gradients" if key in gradients else "statistics" if key in buffers else "outputs"  # noqa: E731
    medians = {k: statistics.median(d for key, d in theirs.items() if kind(key) == k) for k in ("gradients", "statistics", "outputs")
               if k != "statistics" or buffers}
    worst, worst_name = 0.0, ""
    for key, value in exact.items():
        if ours[key].shape != value.shape:
            fail(f"{name}: {key} is {ours[key].shape}, not {value.shape}")
        typical = medians[kind(key)]
        allowed = FACTOR * max(theirs[key], typical)
        share = distance(ours[key], value) / allowed
        if share > worst:
            worst, worst_name = share, key
        if not share <= 1:
            fail(f"{name}: {key} differs from fp64 by {distance(ours[key], value):.3g} of its size, torchvision's fp32 "
                 f"by {theirs[key]:.3g}, mostly by {typical:.3g}")

    # What was exported has the statistics that the steps have left.
    again = make(name, classes).eval()
    again.load_state_dict(load_file(folder / ("ours-timm" if name in TIMM_NAMES else "ours") / "model.safetensors"))
    pictures = images[0]
    with torch.no_grad():
        by_torchvision = again(pictures)
    if name in NAMES or name in TIMM_NAMES:
        opened = timm.create_model(f"local-dir:{folder / 'ours-timm'}", pretrained=True).eval()
        with torch.no_grad():
            by_timm = opened(pictures)
        if distance(by_timm, by_torchvision) > 1e-5:
            fail(f"{name}: timm and torchvision differ on what was exported by {distance(by_timm, by_torchvision):.3g}")
    print(f"{name}: {len(exact)} tensors, at most {worst * FACTOR:.2g} times torchvision's distance from fp64 ({worst_name})", flush=True)


def main():
    torch.set_num_threads(1)
    probe = Probe(sys.argv[1])
    listed = listings(probe)
    check_names(listed)
    wanted = sys.argv[2:]
    for case in CASES:
        if wanted and case[0] not in wanted:
            continue
        with tempfile.TemporaryDirectory() as folder:
            check(probe, listed, *case, Path(folder))


main()
