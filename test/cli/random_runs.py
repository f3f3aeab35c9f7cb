"""Random recipes of small models train under a random layout, and go on under another: each step gives the loss and gradient norm of one rank
without any strategy, or the recipe is refused by the name of a key. DSTRAIN=build/release/bin/dstrain python3 test/cli/random_runs.py
--cases 500 --seed 1000 goes on for longer; a case is drawn from its seed alone, which the lines say. On a machine with GPUs they are the
ranks: --ranks says how many there are."""
import argparse
import pathlib
import random
import re
import subprocess
import sys
import tempfile

from support import far_from_one_rank, metrics, only_run, run

DECODERS = ["qwen2", "qwen3", "llama", "mistral", "phi3", "olmo2", "gemma2", "gemma3_text", "gpt_neox", "bloom", "gpt2"]
MIXTURES = ["qwen2_moe", "qwen3_moe", "mixtral"]
VISION = ["vit", "deit", "dinov2", "clip", "siglip"]
CNNS = ["cnn-basic", "cnn-basic", "mobilenet-v2", "mobilenet-v3-small", "efficientnet-b0", "resnet18", "convnext-tiny", "ensemble", "cnn-lstm"]
STEPS = 4  # of which the first two are the first layout's
FIXED = {"data.samples": 64, "precision.compute": "fp32", "run.evaluate": "never", "optimizer.decay_steps": STEPS,
         "run.checkpoint.every": 2}
# Shares of loss and gradient norm. A router may choose another expert that it likes as well; convolutions without norms of a batch grow differences.
BOUNDS = {"mixture": (2e-3, 5e-2), "convolution": (2e-3, 2e-2)}
BOUND = (2e-4, 5e-3)
KEY = re.compile(r"\b(batch|batch_norm|data|ema|experts|lora|memory|model|optimizer|parallel|precision|run)\.[a-z_.]+: .*")


def language_model(draw, kind):
    heads = draw.choice([2, 3, 4, 4, 8])
    name = draw.choice(DECODERS if kind == "decoder" else MIXTURES)
    values = {"model.name": name, "model.layers": draw.choice([2, 3, 4, 5]), "model.width": heads * draw.choice([4, 8, 8, 12, 16]),
              "model.heads": heads, "model.vocab_size": draw.choice([50, 64, 97, 131]), "data.sequence": draw.choice([24, 48])}
    if name not in ("gpt_neox", "bloom", "gpt2"):
        values["model.kv_heads"] = draw.choice([number for number in (1, 2, 3, 4, 8) if heads % number == 0])
    if name not in ("bloom", "mixtral"):
        values["model.mlp_width"] = draw.choice([32, 48, 64, 100])
    if kind == "mixture":
        values |= {"model.experts": draw.choice([2, 4, 8]), "model.experts_per_token": draw.choice([1, 2]),
                   "model.expert_width": draw.choice([16, 24, 32]), "experts.balance_loss": draw.choice([0, 0.01]),
                   "experts.z_loss": draw.choice([0, 0.001])}
    if name == "qwen2_moe":
        values["model.shared_width"] = draw.choice([16, 32])
    return values


def vision_model(draw):
    heads = draw.choice([2, 3, 4])
    values = {"model.name": draw.choice(VISION), "model.layers": draw.choice([2, 3, 4]), "model.width": heads * draw.choice([8, 16]),
              "model.heads": heads, "model.image_size": 32, "model.patch_size": draw.choice([8, 16]), "model.channels": 3,
              "model.classes": draw.choice([5, 10, 13])}
    if values["model.name"] != "dinov2":  # whose MLP's width follows
        values["model.mlp_width"] = draw.choice([32, 64, 100])
    return values


def convolutional_model(draw):
    name = draw.choice(CNNS)
    values = {"model.name": name, "model.image_size": 32, "model.classes": draw.choice([5, 10])}
    if name != "convnext-tiny":
        values["batch_norm.over"] = "running"
    if name == "cnn-basic":
        values["model.channels"] = 3
    if name == "ensemble":
        values |= {"model.members": "[cnn-basic, mobilenet-v2]", "model.average": draw.choice(["logits", "probabilities"])}
    if name == "cnn-lstm":
        values |= {"model.trunk": "cnn-basic", "data.frames": draw.choice([3, 4])}
    # Masks depend on the rank and the micro-batch.
    if name in ("mobilenet-v2", "mobilenet-v3-small", "efficientnet-b0", "ensemble"):
        values["model.dropout"] = 0
    if name in ("efficientnet-b0", "convnext-tiny"):
        values["model.drop_path"] = 0
    return values


def draw_model(draw):
    """Its kind, and what all runs of a case have in common."""
    kind = draw.choices(["decoder", "mixture", "vision", "convolution"], [5, 2, 3, 2])[0]
    values = {"vision": vision_model, "convolution": convolutional_model}.get(kind, lambda draw: language_model(draw, kind))(draw)
    optimizer = draw.choice(["adamw", "adamw", "sgd", "lion", "muon", "rmsprop"])
    values |= {"optimizer.name": optimizer, "optimizer.lr": 1e-4 if optimizer == "lion" else 1e-3, "batch.global": draw.choice([4, 6, 8, 8, 12]),
               "optimizer.clip_norm": draw.choice([0, 0.5, 1])}
    if draw.random() < 0.2:
        values["ema.decay"] = 0.9
    if kind != "convolution" and draw.random() < 0.25:
        values |= {"lora.rank": draw.choice([2, 4, 8]), "lora.alpha": 8, "lora.base": draw.choice(["compute", "compute", "nf4"]),
                   "lora.lr_ratio": draw.choice([1, 4])}
    return kind, values


def draw_axes(draw, kind, model, ranks):
    axes = {"decoder": ["tensor", "sequence", "pipeline"], "mixture": ["tensor", "sequence", "pipeline", "expert", "expert"],
            "vision": ["tensor", "pipeline"], "convolution": ["pipeline"]}[kind]
    if model["optimizer.name"] == "muon" or model["model.name"] == "olmo2":
        axes = [axis for axis in axes if axis != "tensor"]
    divided = {"tensor": model.get("model.heads"), "expert": model.get("model.experts")}
    degrees = {}
    for axis in draw.sample(axes, len(axes)):
        able = [degree for degree in (2, 3, 4) if ranks % degree == 0 and divided.get(axis, degree) % degree == 0]
        if able and axis not in degrees and draw.random() < 0.45:
            degrees[axis] = draw.choice(able)
            ranks //= degrees[axis]
    return degrees, ranks


def draw_offload(draw, values, path):
    places = ["pinned", "pageable", "file"]
    found = {}
    if draw.random() < 0.3:
        found |= {"memory.offload.optimizer": draw.choice(places), "memory.offload.share": draw.choice([1, 1, 0.3]),
                  "memory.offload.update": draw.choice(["auto", "cpu"]), "memory.offload.chunk": draw.choice([256, 8388608])}
    if draw.random() < 0.2 and "batch.concurrent" not in values:
        found["memory.offload.parameters"] = draw.choice(places)
    if values["memory.recompute"] == "blocks" and draw.random() < 0.2:
        found["memory.offload.activations"] = draw.choice(["pinned", "pageable"])
    return found | ({"memory.offload.path": path} if "file" in found.values() else {})


def draw_layout(draw, kind, model, path):
    """Number of ranks, and settings that change no loss."""
    ranks = draw.choice([number for number in (1, 2, 2, 3, 4, 4) if number <= chosen.ranks])
    degrees, data = draw_axes(draw, kind, model, ranks)
    values = {f"parallel.{axis}": degree for axis, degree in degrees.items()}
    stage = draw.choice([0, 1, 2, 3])
    if data > 1 or draw.random() < 0.2:
        values["parallel.zero.stage"] = stage
    if data == 4 and stage > 0 and draw.random() < 0.3:
        values["parallel.zero.shard"] = 2
    if stage == 3 and data > 1:
        values["parallel.zero.prefetch"] = draw.choice([0, 1, 4])
    values["batch.micro"] = draw.choice([1, 1, 2, 2, 3, 4])
    if "pipeline" in degrees:
        values["parallel.stages.schedule"] = draw.choice(["auto", "gpipe", "1f1b", "interleaved", "zero_bubble", "dual_pipe_v"])
    elif kind != "mixture" and draw.random() < 0.3:
        values["batch.concurrent"] = 2
    if "sequence" in degrees:
        values["parallel.sequence_attention"] = draw.choice(["gather", "heads"])
    if kind == "convolution" and data > 1:
        values["parallel.bucket"] = draw.choice([0, 0.05, 8])
    if kind in ("decoder", "vision") and "tensor" not in degrees and draw.random() < 0.15:
        values["memory.tiles"] = draw.choice([4, 16])
    values["memory.recompute"] = draw.choice(["none", "none", "blocks", "auto"])
    if model["optimizer.name"] != "muon" and "ema.decay" not in model:
        values |= draw_offload(draw, values, path)
    return ranks, values


def train(folder, ranks, values, *more):
    """[(loss, gradient norm)] of the steps, or (exit code, what was printed)."""
    recipe = pathlib.Path(folder).with_suffix(".yaml")
    recipe.write_text("data: {name: random}\n")
    words = [word for key, value in ({**FIXED, **values, "run.output": folder}).items() for word in ("--set", f"{key}={value}")]
    try:
        done = run("launch", recipe, "--ranks", ranks, *more, *words, "--env", "OMP_NUM_THREADS=1", timeout=150)
    except subprocess.TimeoutExpired as hung:
        return None, f"runs for more than 150 s: {hung.stdout}"
    if done.returncode != 0:
        return done.returncode, done.stderr + done.stdout
    return [(step["loss"], step["grad_norm"]) for step in metrics(only_run(folder)).values()]


def words_of(ranks, values):
    return f"--ranks {ranks} " + " ".join(f"--set '{key}={value}'" for key, value in values.items())


def play(seed, folder):
    """"equal", "refused", or what is wrong; and the case in words."""
    draw = random.Random(seed)
    kind, model = draw_model(draw)
    first, second = (draw_layout(draw, kind, model, folder) for _ in range(2))
    text = f"{words_of(*first)}\n  then {words_of(*second)}\n  model {words_of(1, model)}"
    found, resumed = [], []
    for number, (ranks, layout) in enumerate((first, second)):
        done = train(f"{folder}/{number}", ranks, {**model, **layout, "run.steps": 2 * (number + 1)}, *resumed)
        if isinstance(done, tuple):
            code, said = done
            refused = code == 64 and KEY.search(said)
            return (f"refused: {refused[0]}" if refused else f"exit code {code}: {said[-2000:]}"), text
        found += done
        resumed = ["--resume", *(only_run(f"{folder}/0") / "checkpoints").glob("step-*2")]
    expected = train(f"{folder}/one", 1, {**model, "batch.micro": model["batch.global"], "run.steps": STEPS})
    if isinstance(expected, tuple):
        return f"one rank: exit code {expected[0]}: {expected[1][-2000:]}", text
    return far_from_one_rank(found, expected, BOUNDS.get(kind, BOUND)) or "equal", text


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--cases", type=int, default=8)
parser.add_argument("--seed", type=int, default=0, help="of the first case")
parser.add_argument("--ranks", type=int, default=4, help="at the most")
chosen = parser.parse_args()
counts = {"equal": 0, "refused": 0, "wrong": 0}
not_for_gpus = 0  # models whose sizes no kernel takes
for seed in range(chosen.seed, chosen.seed + chosen.cases):
    with tempfile.TemporaryDirectory() as scratch:
        result, case = play(seed, scratch)
    end = result.partition(":")[0]
    counts[end if end in counts else "wrong"] += 1
    not_for_gpus += end == "refused" and "no kernel of a GPU takes" in result
    print(f"{seed}: {result}" + ("" if end in counts else f"\n  {case}"), flush=True)
print(f"random runs: {counts}, {not_for_gpus} of the refused for their sizes on a GPU")
sys.exit(0 if counts["wrong"] == 0 and counts["equal"] >= (chosen.cases - not_for_gpus) // 3 else 1)
