"""Learning rates of 1,000 steps against the schedules of transformers and DeepSpeed: what the optimizer is given before each of its steps,
under schedulers that step once after it, as both trainers do.

usage: learning_rates.py LEARNING_RATE_PROBE; exit code 77 where transformers or DeepSpeed (scripts/setup --tests) is not installed; the other is
compared."""
import os
import pathlib
import subprocess
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("DS_ACCELERATOR", "cpu")
try:
    import torch
    from transformers import get_scheduler
except ImportError as missing:
    print(f"skipped: this python has no transformers ({missing}); scripts/test installs it")
    sys.exit(77)

cache = os.environ.get("DSTRAIN_CACHE") or pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "dstrain"
sys.path += map(str, pathlib.Path(cache, "import-venv").glob("lib/python3*/site-packages"))

PROBE, ROOT = sys.argv[1], pathlib.Path(__file__).resolve().parents[2]
LR, COUNT = 3e-4, 1000


def ours(total, **keys):
    settings = [f"optimizer.{key}={value}" for key, value in {"lr": LR, **keys}.items()]
    output = subprocess.run([PROBE, str(total), str(COUNT), *settings], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [float(line) for line in output.split()]


def theirs(make):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LR)
    scheduler = make(optimizer)
    rates = []
    for _ in range(COUNT):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def compare(name, found, expected):
    assert len(found) == len(expected) == COUNT
    for step, (a, b) in enumerate(zip(found, expected)):
        assert abs(a - b) <= 1e-12 * LR + 1e-9 * abs(b), (name, step, a, b)
    assert len(set(found)) > 1 or "warmup_steps=0" in name, name
    print(f"{name}: {COUNT} learning rates are equal")


def check_transformers():
    for kind, schedule in (("linear", "linear"), ("cosine", "cosine"), ("constant_with_warmup", "constant")):
        for warmup in (0, 1, 90):
            expected = theirs(lambda optimizer: get_scheduler(kind, optimizer, num_warmup_steps=warmup, num_training_steps=COUNT))
            found = ours(COUNT, schedule=schedule, warmup_steps=warmup, warmup_shift=0)
            compare(f"transformers {kind}, warmup_steps={warmup}", found, expected)


def check_deepspeed():
    try:
        from deepspeed.runtime import lr_schedules
    except ImportError as missing:
        print(f"skipped: this python has no deepspeed ({missing}); scripts/setup --tests installs it")
        sys.exit(77)
    low = 0.1 * LR
    for course in ("linear", "log"):
        for warmup in (2, 90):
            common = dict(warmup_num_steps=warmup, warmup_type=course)
            shared = dict(warmup=course, warmup_steps=warmup, warmup_shift=-1)
            name = f"{course}, {warmup} steps"
            compare(f"DeepSpeed WarmupLR, {name}", ours(COUNT, schedule="constant", warmup_ratio=0.1, **shared),
                    theirs(lambda optimizer: lr_schedules.WarmupLR(optimizer, low, LR, **common)))
            compare(f"DeepSpeed WarmupDecayLR, {name}",
                    ours(COUNT, schedule="linear", decay_steps=700, warmup_ratio=0.1, final_lr_ratio=0.1, **shared),
                    theirs(lambda optimizer: lr_schedules.WarmupDecayLR(optimizer, 700, low, LR, **common)))
            # Its first step has the learning rate 0, whatever warmup_min_ratio is.
            compare(f"DeepSpeed WarmupCosineLR, {name}",
                    ours(COUNT, schedule="cosine", decay_steps=700, final_lr_ratio=0.0001, **shared),
                    theirs(lambda optimizer: lr_schedules.WarmupCosineLR(optimizer, 700, **common)))


check_transformers()
check_deepspeed()
