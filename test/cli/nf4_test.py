"""lora.base nf4 beside PEFT on bitsandbytes' matrices in 4 bits (test/golden/nf4), on one rank and on two; folders in 4 bits; what is refused."""
import json
import pathlib
import shutil
import struct
import tempfile

from support import expect_success, run

GOLDEN = pathlib.Path("test/golden/nf4")
KNOWN = json.loads((GOLDEN / "losses.json").read_text())
BOUND = 1e-5  # of a loss: another order of sums


def settings(scratch):
    return f"""
model:     {{ weights: {GOLDEN}/llama }}
lora:      {{ rank: 4, alpha: 8, targets: [all-linear], weights: {GOLDEN}/adapter, base: nf4 }}
data:      {{ name: jsonl, path: {GOLDEN}/train.jsonl, test_share: 0, response: "{{text}}", tokenizer: {GOLDEN}/llama, sequence: 32, cache: {scratch}/cache }}
batch:     {{ global: 2, micro: 2 }}
optimizer: {{ name: adamw, lr: 1.0e-2, betas: [0.9, 0.999], eps: 1.0e-8, weight_decay: 0, clip_norm: 0, schedule: constant, warmup_steps: 0 }}
precision: {{ compute: fp32 }}
run:       {{ steps: 20, evaluate: never, checkpoint: {{ every: never }} }}
"""


def losses(recipe, scratch, ranks=1, changes=()):
    output = pathlib.Path(tempfile.mkdtemp(dir=scratch))
    changed = [word for change in changes for word in ("--set", change)]
    done = run("launch", recipe, "--ranks", ranks, "--set", f"run.output={output}", *changed)
    assert done.returncode == 0, done.stderr[-2000:]
    [metrics] = output.glob("*/metrics.jsonl")
    found = [row["loss"] for row in map(json.loads, metrics.read_text().splitlines()) if "loss" in row]
    assert len(found) == 20, found
    return found, metrics.parent, done.stdout + done.stderr


def check(found, wanted, bound=BOUND):
    apart = max(abs(a - b) / b for a, b in zip(found, wanted))
    assert apart <= bound, (apart, found, wanted)
    return apart


def rewrite(source, target, change):
    """A copy of a folder of safetensors whose header and data `change(header, data)` has changed in place, data keeping its length."""
    shutil.copytree(source, target)
    file = target / "model.safetensors"
    raw = file.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header, data = json.loads(raw[8:8 + length]), bytearray(raw[8 + length:])
    change(header, data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return target


def state_of(header, data, name="model.layers.0.mlp.down_proj.weight"):
    begin, end = header[f"{name}.quant_state.bitsandbytes__nf4"]["data_offsets"]
    return begin, end, bytes(data[begin:end]).decode()


with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    recipe = scratch / "nf4.yaml"
    recipe.write_text(settings(scratch))

    # As PEFT over bitsandbytes, whose matrices are made of the same folder, or read from its own files.
    one, folder, _ = losses(recipe, scratch)
    apart = check(one, KNOWN["double"])
    for known, ranks, changes in (("single", 1, ["lora.double=false"]), ("base", 1, ["lora.base=compute"]),
                                  ("double", 1, [f"model.weights={GOLDEN}/llama-4bit"]),
                                  # Coded maxima may be had as what they mean, and all of it in the compute type.
                                  ("double", 1, [f"model.weights={GOLDEN}/llama-4bit", "lora.double=false"]),
                                  ("double", 2, ["parallel.zero.stage=3", "batch.micro=1"]),
                                  ("double", 1, ["memory.recompute=blocks", "memory.tiles=16"])):
        check(losses(recipe, scratch, ranks, changes)[0], KNOWN[known])
    decoded, _, said = losses(recipe, scratch, 1, [f"model.weights={GOLDEN}/llama-4bit", "lora.base=compute"])
    check(decoded, KNOWN["double"])
    assert "14 matrices in 4 bits are decoded" in said, said
    assert max(abs(a - b) for a, b in zip(one, KNOWN["base"])) > 1e-3  # the comparison can fail

    # An export with the base merged in has what training saw: its first loss, without adapters, is that of the last step.
    trained, folder, _ = losses(recipe, scratch, 1, ["run.checkpoint.every=20"])
    merged = scratch / "merged"
    expect_success(run("checkpoint", "export", folder, merged, "--merge"))
    after, *_ = losses(recipe, scratch, 1, [f"model.weights={merged}", "lora.base=compute", "lora.weights=", "optimizer.lr=1e-12"])
    assert after[0] < trained[-1] < trained[0], (after[0], trained)

    # What is not as it must be is named.
    def refused(words, *changes):
        done = run("launch", recipe, "--ranks", 1, "--set", f"run.output={scratch}/refused", *[w for c in changes for w in ("--set", c)])
        said = done.stdout + done.stderr
        assert done.returncode != 0 and all(word in said for word in words), (words, said[-1500:])

    refused(["lora.base", "lora.rank is 0"], "lora.rank=0", "lora.weights=")
    refused(["lora.base", "fp8"], "precision.compute=fp8")

    def other_type(header, data):
        begin, end, text = state_of(header, data)
        data[begin:end] = text.replace('"nf4"', '"nf5"').encode()

    def other_blocks(header, data):
        begin, end, text = state_of(header, data)
        data[begin:end] = text.replace('"blocksize": 64', '"blocksize": 32').encode()

    def not_finite(header, data):
        begin, _ = header["model.layers.0.mlp.down_proj.weight.nested_absmax"]["data_offsets"]
        data[begin:begin + 4] = struct.pack("<f", float("nan"))

    def other_map(header, data):
        begin, _ = header["model.layers.0.mlp.down_proj.weight.quant_map"]["data_offsets"]
        data[begin:begin + 4] = struct.pack("<f", -0.9)

    def no_offset(header, data):
        begin, end, text = state_of(header, data)
        data[begin:end] = text.replace("nested_offset", "nested_offxxx").encode()

    for change, word in ((other_type, "quant_type is not nf4"), (other_blocks, "blocksize is not 64"), (not_finite, "a maximum is not finite"),
                         (other_map, "quant_map"), (no_offset, "nested_offset is missing")):
        broken = rewrite(GOLDEN / "llama-4bit", scratch / change.__name__, change)
        refused(["model.layers.0.mlp.down_proj.weight", word], f"model.weights={broken}")
print(f"nf4: losses of 20 steps within {apart:.1e} of PEFT on bitsandbytes")
