"""Layouts of several axes on the GPUs of this machine: losses and gradient norms equal those of one rank.

More ranks than GPUs share them: every so many ranks as there are GPUs call themselves a host of their own (NCCL_HOSTID), so NCCL takes
its network transport between those over the loopback interface. What runs is the real thing: streams, communicators, CUDA graphs,
kernels. Times mean nothing here. DSTRAIN_CPU=1 runs the same on the CPU by Gloo; arguments name the layouts to run, and
--format the number formats.
"""

import argparse
import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import support  # noqa: E402

CPU = os.environ.get("DSTRAIN_CPU") == "1"
GPUS = 1 if CPU else max(1, support.num_gpus())
RANKS_AT_ONCE = 8 if CPU else 12  # they and what NCCL holds for them fit into 80 GB; more of them take turns too slowly
STEPS = 6  # graphs are recorded in the fourth
SHARED = {"run.steps": STEPS, "run.epochs": 0, "run.evaluate": "never", "run.checkpoint.every": "never", "batch.global": 8,
          "optimizer.lr": 1e-3, "optimizer.clip_norm": 0.5, "optimizer.warmup_steps": 0, "data.samples": 200}
TEXT = {"model.layers": 4, "model.width": 256, "model.heads": 8, "model.vocab_size": 1030, "data.sequence": 128,
        "batch.micro": 2}
QWEN = {**TEXT, "model.mlp_width": 512, "model.kv_heads": 2}
MODELS = {
    "qwen": ("recipes/qwen/qwen2.5-3b_random.yaml", QWEN),
    # What tensor ranks exchange is large enough for copies between GPUs.
    "qwen, 1024 tokens": ("recipes/qwen/qwen2.5-3b_random.yaml", {**QWEN, "data.sequence": 1024}),
    "bloom": ("recipes/bloom/bloom-560m_random.yaml", TEXT),
    "moe": ("recipes/qwen/qwen2.5-3b-moe_random.yaml",
            {**QWEN, "model.experts": 8, "model.experts_per_token": 2,
             "model.expert_width": 128, "model.shared_width": 256, "precision.states": "fp32"}),
    "vit": ("recipes/vit/vit-base_random_ddp.yaml",
            {"model.layers": 4, "model.width": 256, "model.mlp_width": 512, "model.heads": 8, "model.image_size": 64,
             "model.patch_size": 16, "batch.micro": 2}),
}
MODELS["cnn"] = ("recipes/cnn/mobilenet-v2_random_ddp.yaml",
                 {"model.name": "cnn-basic", "model.channels": 3, "model.image_size": 32, "model.classes": 10, "model.dropout": -1,
                  "batch_norm.over": "running", "batch.micro": 2, "parallel.bucket": 0.1})
for name in ("deit-small", "dinov2-small", "clip-vit-base-patch32", "siglip-base-patch16-224"):
    sizes = MODELS["vit"][1] | {"model.name": name}
    if name == "dinov2-small":  # whose MLP's width follows
        del sizes["model.mlp_width"]
    MODELS[name.split("-")[0]] = (MODELS["vit"][0], sizes)
MODELS["dinov2, gated"] = (MODELS["vit"][0], MODELS["dinov2"][1] | {"model.name": "dinov2-giant"})
FORMATS = {
    "fp32": {"precision.compute": "fp32"},
    "bf16": {"precision.compute": "bf16"},
    "bf16 gradients": {"precision.compute": "bf16", "precision.gradients": "bf16", "precision.reduce": "bf16"},
}
NO_BF16 = os.environ.get("DSTRAIN_GPU_AS", "").startswith("7.")  # tensor cores do not multiply it
if NO_BF16:
    FORMATS = {"fp32": FORMATS["fp32"], "fp16": {"precision.compute": "fp16", "precision.loss_scale.fixed": 256}}
# Name: ranks, model, what is set beyond the defaults.
LAYOUTS = {
    "data 2, stage 0": (2, "qwen", {"parallel.zero.stage": 0}),
    "data 2, stage 2": (2, "qwen", {"parallel.zero.stage": 2}),
    "data 2, stage 3": (2, "qwen", {"parallel.zero.stage": 3}),
    "data 2, stage 3, ViT": (2, "vit", {"parallel.zero.stage": 3}),
    "data 2, stage 0, NCCL": (2, "qwen", {"parallel.zero.stage": 0, "parallel.peer_copies": "false"}),
    "data 2, stage 2, NCCL": (2, "qwen", {"parallel.zero.stage": 2, "parallel.peer_copies": "false"}),
    "data 2, stage 3, NCCL": (2, "vit", {"parallel.zero.stage": 3, "parallel.peer_copies": "false"}),
    "data 4, stage 0": (4, "qwen", {"parallel.zero.stage": 0, "batch.micro": 1}),
    "data 4, stage 2": (4, "qwen", {"parallel.zero.stage": 2, "batch.micro": 1}),
    "data 2, stage 3, DeiT": (2, "deit", {"parallel.zero.stage": 3}),
    "data 2, stage 2, DINOv2, gated": (2, "dinov2, gated", {"parallel.zero.stage": 2}),
    "data 2, stage 3, CLIP": (2, "clip", {"parallel.zero.stage": 3}),
    "data 2, stage 2, CNN, two at once": (2, "cnn", {"parallel.zero.stage": 2, "batch.concurrent": 2}),
    "data 2, stage 3, CNN, two at once": (2, "cnn", {"parallel.zero.stage": 3, "batch.concurrent": 2}),
    "data 4, stage 3, ViT": (4, "vit", {"parallel.zero.stage": 3, "batch.micro": 1}),
    "pipeline 2, gpipe": (2, "qwen", {"parallel.pipeline": 2, "parallel.stages.schedule": "gpipe", "batch.micro": 1}),
    "pipeline 2, 1f1b": (2, "qwen", {"parallel.pipeline": 2, "parallel.stages.schedule": "1f1b", "batch.micro": 1}),
    "pipeline 2, interleaved": (2, "qwen", {"parallel.pipeline": 2, "parallel.stages.schedule": "interleaved", "batch.micro": 1}),
    "pipeline 2, zero bubble": (2, "qwen", {"parallel.pipeline": 2, "parallel.stages.schedule": "zero_bubble", "batch.micro": 1}),
    "pipeline 2, V": (2, "qwen", {"parallel.pipeline": 2, "parallel.stages.schedule": "dual_pipe_v", "batch.micro": 1}),
    "pipeline 2, ViT": (2, "vit", {"parallel.pipeline": 2}),
    "pipeline 2, DINOv2": (2, "dinov2", {"parallel.pipeline": 2}),
    "pipeline 2, BLOOM": (2, "bloom", {"parallel.pipeline": 2}),
    "tensor 2": (2, "qwen", {"parallel.tensor": 2}),
    "tensor 4, shared key heads": (4, "qwen", {"parallel.tensor": 4}),
    "tensor 2, copies": (2, "qwen, 1024 tokens", {"parallel.tensor": 2}),
    "tensor 2, copies, two at once": (2, "qwen, 1024 tokens", {"parallel.tensor": 2, "batch.concurrent": 2}),
    "tensor 4, copies, two at once": (4, "qwen, 1024 tokens", {"parallel.tensor": 4, "batch.concurrent": 2}),
    "tensor 2, two at once": (2, "qwen", {"parallel.tensor": 2, "batch.concurrent": 2}),
    "tensor 2, data 2, stage 3, two at once": (4, "qwen", {"parallel.tensor": 2, "parallel.zero.stage": 3, "batch.concurrent": 2, "batch.micro": 1}),
    "sequence 2, two at once": (2, "qwen", {"parallel.sequence": 2, "batch.concurrent": 2}),
    "tensor 2, ViT": (2, "vit", {"parallel.tensor": 2}),
    "tensor 2, DeiT": (2, "deit", {"parallel.tensor": 2}),
    "tensor 2, DINOv2": (2, "dinov2", {"parallel.tensor": 2}),
    "tensor 2, CLIP": (2, "clip", {"parallel.tensor": 2}),
    "tensor 2, SigLIP": (2, "siglip", {"parallel.tensor": 2}),
    "tensor 2, BLOOM": (2, "bloom", {"parallel.tensor": 2}),
    "sequence 2": (2, "qwen", {"parallel.sequence": 2}),
    "sequence 2, heads": (2, "qwen", {"parallel.sequence": 2, "parallel.sequence_attention": "heads"}),
    "sequence 2, BLOOM": (2, "bloom", {"parallel.sequence": 2}),
    "expert 2": (2, "moe", {"parallel.expert": 2}),
    "pipeline 2, data 2, stage 2": (4, "qwen", {"parallel.pipeline": 2, "parallel.zero.stage": 2, "batch.micro": 1}),
    "pipeline 2, tensor 2": (4, "qwen", {"parallel.pipeline": 2, "parallel.tensor": 2, "batch.micro": 1}),
    "tensor 2, data 2, stage 0": (4, "qwen", {"parallel.tensor": 2, "parallel.zero.stage": 0}),
    "pipeline 2, data 2, stage 0": (4, "qwen", {"parallel.pipeline": 2, "parallel.zero.stage": 0}),
    "tensor 2, data 2, stage 3": (4, "qwen", {"parallel.tensor": 2, "parallel.zero.stage": 3}),
    "tensor 2, sequence 2": (4, "qwen", {"parallel.tensor": 2, "parallel.sequence": 2}),
    "pipeline 2, expert 2": (4, "moe", {"parallel.pipeline": 2, "parallel.expert": 2, "batch.micro": 1}),
    "pipeline 2, expert 2, stage 1": (4, "moe", {"parallel.pipeline": 2, "parallel.expert": 2, "parallel.zero.stage": 1, "batch.micro": 1}),
    "tensor 2, expert 2": (4, "moe", {"parallel.tensor": 2, "parallel.expert": 2}),
    "pipeline 2, tensor 2, sequence 2": (8, "qwen", {"parallel.pipeline": 2, "parallel.tensor": 2, "parallel.sequence": 2, "batch.micro": 1}),
}


class Ranks:
    """Lets runs begin while no more than so many ranks are under way."""

    def __init__(self, max_ranks):
        self.free = max_ranks
        self.changed = threading.Condition()

    def take(self, ranks):
        with self.changed:
            self.changed.wait_for(lambda: self.free >= ranks)
            self.free -= ranks

    def give(self, ranks):
        with self.changed:
            self.free += ranks
            self.changed.notify_all()


RANKS = Ranks(RANKS_AT_ONCE)


def steps(ranks, model, changes, form):
    """(loss, gradient norm) of each step."""
    recipe, sizes = MODELS[model]
    folder = tempfile.mkdtemp()
    values = {**SHARED, **sizes, **changes, **FORMATS[form], "run.output": folder}
    command = [support.DSTRAIN, "engine", recipe] + [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    running = []
    RANKS.take(ranks)
    try:
        running = support.start_ranks(
            command, ranks, GPUS, lambda rank: support.as_host(rank // GPUS) | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"})
        output = [process.communicate(timeout=150)[0] for process in running]
        for process, text in zip(running, output):
            if process.returncode != 0:
                return "\n".join(line for text in output for line in text.splitlines()[-6:])
        return [(step["loss"], step["grad_norm"]) for step in support.metrics(support.only_run(folder)).values()]
    except subprocess.TimeoutExpired:
        return "ran for more than 150 s"
    finally:
        for process in running:
            process.kill()
            process.wait()
        RANKS.give(ranks)
        shutil.rmtree(folder, ignore_errors=True)


def far(found, expected, form, model):
    """What differs by more than rounding; empty: nothing."""
    if isinstance(found, str):
        return found
    # Rounding lets a router choose another one of two experts that it likes as well.
    fp32 = (1e-4, 2e-3) if model == "moe" else (2e-5, 2e-4)
    return support.far_from_one_rank(found, expected, fp32 if form == "fp32" else (4e-3, 6e-2))


def main():
    if not CPU and support.num_gpus() == 0:
        print("no GPU: skipped")
        return 77
    os.chdir(pathlib.Path(__file__).resolve().parents[2])
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="LAYOUT")
    parser.add_argument("--format", action="append", choices=FORMATS, help="repeatable; all, on the CPU fp32")
    chosen = parser.parse_args()
    names = chosen.names or list(LAYOUTS)
    if NO_BF16:
        print("DSTRAIN_GPU_AS: no products of bf16, which is skipped; fp16 in its place")
    failed = []
    for form in chosen.format or (["fp32"] if CPU else FORMATS):
        with concurrent.futures.ThreadPoolExecutor(len(LAYOUTS) + len(MODELS)) as pool:
            expected = {model: pool.submit(steps, 1, model, {}, form) for model in {LAYOUTS[name][1] for name in names}}
            begun = time.monotonic()
            found = {pool.submit(steps, *LAYOUTS[name], form): name for name in names
                     if not (form != "fp32" and LAYOUTS[name][1] == "moe")}  # rounding changes whom the router chooses
            for result in concurrent.futures.as_completed(found):
                name = found[result]
                model = LAYOUTS[name][1]
                reference = expected[model].result()
                wrong = reference if isinstance(reference, str) else far(result.result(), reference, form, model)
                print(f"{form}, {name}: {wrong or 'equal'} ({time.monotonic() - begun:.0f} s)", flush=True)
                if wrong:
                    failed.append((form, name))
    print(f"layouts: {len(failed)} failed {failed}" if failed else "layouts: ok")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
