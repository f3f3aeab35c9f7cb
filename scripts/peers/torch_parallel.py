"""The peer of several axes: Qwen2.5 under torch's own FSDP2, parallelize_module and pipelining, with random weights and tokens.

torchrun --nproc_per_node=N torch_parallel.py [--tensor T] [--pipeline P --schedule 1F1B|GPipe|Interleaved1F1B|ZBVZeroBubble]
Ranks that remain are data ranks under FSDP2. Weights, gradients and states are bf16 with --states bf16; with fp32 (default) weights and
states are fp32 and computation is bf16, by FSDP2's mixed precision, which then wraps a single data rank too. Prints one line of JSON:
tokens per second and GPU, peak memory of the fullest rank. --tiny is a small model, which also runs on CPU ranks (gloo).
"""
import argparse
import contextlib
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, PrepareModuleOutput, RowwiseParallel, SequenceParallel,
                                               loss_parallel, parallelize_module)

parser = argparse.ArgumentParser()
parser.add_argument("--tensor", type=int, default=1)
parser.add_argument("--pipeline", type=int, default=1)
parser.add_argument("--schedule", default="1F1B")
parser.add_argument("--layers-of-stages", default="", help="layers of each stage in model order: 1,2,2,5; default: even")
parser.add_argument("--micro-batch", type=int, default=4)
parser.add_argument("--micro-batches", type=int, default=1)
parser.add_argument("--sequence", type=int, default=4096)
parser.add_argument("--states", choices=("fp32", "bf16"), default="fp32")
parser.add_argument("--zero", type=int, choices=(2, 3), default=2, help="FSDP2 keeps (2) or drops (3) gathered weights after forward")
parser.add_argument("--async-tensor", action="store_true", help="torch's async tensor parallelism: needs --tensor and compilation")
parser.add_argument("--no-compile", dest="compile", action="store_false")
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--warmup", type=int, default=5)
parser.add_argument("--tiny", action="store_true")
args = parser.parse_args()
if args.compile and args.schedule == "ZBVZeroBubble":
    # torch 2.11: "Attribute '_input_metadata' is invalid", as its split backward walks through the graph of autograd's functions.
    parser.error("--schedule ZBVZeroBubble needs --no-compile: torch cannot split the backward of a compiled module")

WORLD, RANK, LOCAL = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
cuda = torch.cuda.is_available()
device = torch.device("cuda", LOCAL) if cuda else torch.device("cpu")
if cuda:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if cuda else "gloo", device_id=device if cuda else None)
data_ranks = WORLD // (args.tensor * args.pipeline)
assert data_ranks * args.tensor * args.pipeline == WORLD, "tensor x pipeline does not divide the ranks"
mesh = init_device_mesh(device.type, (args.pipeline, data_ranks, args.tensor), mesh_dim_names=("pipeline", "data", "tensor"))
torch.manual_seed(0)
# 36 layers of Qwen2.5-3B; key heads must be a multiple of the tensor degree in torch's plan, so they are repeated where it is larger.
VOCABULARY, WIDTH, LAYERS, HEADS, KEY_HEADS, HIDDEN = (512, 64, 8, 4, 2, 96) if args.tiny else (151936, 2048, 36, 16, 2, 11008)
KEY_HEADS = max(KEY_HEADS, args.tensor)
HEAD = WIDTH // HEADS
T = args.sequence
compute = torch.bfloat16 if cuda else torch.float32
dtype = torch.bfloat16 if args.states == "bf16" and cuda else torch.float32


def angles():
    frequency = 1e6 ** (-torch.arange(0, HEAD, 2, device=device).float() / HEAD)
    angle = torch.arange(T, device=device)[:, None] * frequency
    angle = torch.cat((angle, angle), -1)
    return angle.cos().to(compute), angle.sin().to(compute)


COS, SIN = angles()


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return F.rms_norm(x, (WIDTH,), self.weight, 1e-6)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(WIDTH, HEADS * HEAD)
        self.k = nn.Linear(WIDTH, KEY_HEADS * HEAD)
        self.v = nn.Linear(WIDTH, KEY_HEADS * HEAD)
        self.o = nn.Linear(HEADS * HEAD, WIDTH, bias=False)

    def forward(self, x):
        q, k, v = (linear(x).unflatten(-1, (-1, HEAD)).transpose(1, 2) for linear in (self.q, self.k, self.v))

        def rotate(z):
            return z * COS + torch.cat((-z[..., HEAD // 2:], z[..., :HEAD // 2]), -1) * SIN

        y = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True, enable_gqa=True)
        return self.o(y.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.up = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention, self.norm2, self.mlp = Norm(), Attention(), Norm(), Mlp()

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Stage(nn.Module):
    """Layers [first, last) with the table before the first one and the head behind the last one."""

    def __init__(self, first, last):
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH) if first == 0 else None
        self.layers = nn.ModuleList(Layer() for _ in range(first, last))
        self.norm = Norm() if last == LAYERS else None
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False) if last == LAYERS else None

    def forward(self, x):
        if self.table is not None:
            x = self.table(x).to(compute)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x) if self.head is not None else x


def cut_matrices(stage):
    """Megatron's cut, rows of the sequence split between the matrices."""
    tensor = mesh["tensor"]
    split = Shard(1)
    for layer in stage.layers:
        parallelize_module(layer, tensor, {
            "norm1": SequenceParallel(), "norm2": SequenceParallel(),
            "attention": PrepareModuleInput(input_layouts=(split,), desired_input_layouts=(Replicate(),)),
            "mlp": PrepareModuleInput(input_layouts=(split,), desired_input_layouts=(Replicate(),)),
            "attention.q": ColwiseParallel(), "attention.k": ColwiseParallel(), "attention.v": ColwiseParallel(),
            "attention.o": RowwiseParallel(output_layouts=split),
            "mlp.gate": ColwiseParallel(), "mlp.up": ColwiseParallel(), "mlp.down": RowwiseParallel(output_layouts=split)})
    if stage.table is not None:
        # From stage to stage go local tensors: rows of this rank.
        parallelize_module(stage, tensor, {"table": RowwiseParallel(input_layouts=Replicate(), output_layouts=split)})
    if stage.norm is not None:
        parallelize_module(stage, tensor, {"norm": SequenceParallel(use_local_output=True),
                                           "head": ColwiseParallel(input_layouts=split, output_layouts=Shard(-1), use_local_output=False)})


class Loss:
    """The loss of the last stage's hidden states, by parts, so that the logits of all rows never exist at once."""

    def __init__(self, stage):
        self.stage = stage

    def __call__(self, hidden, labels):
        total = 0.0
        parts = 1 if args.tensor > 1 else max(1, hidden.shape[0] * hidden.shape[1] // 2048)

        def part(x, y):
            logits = self.stage.head(x)
            return F.cross_entropy(logits.flatten(0, -2).float(), y.flatten(), reduction="sum")

        if parts == 1:
            return part(hidden, labels) / labels.numel()
        for x, y in zip(hidden.flatten(0, 1).chunk(parts), labels.flatten().chunk(parts)):
            total = total + torch.utils.checkpoint.checkpoint(part, x, y, use_reentrant=False)
        return total / labels.numel()


def stage_bounds(stages):
    if args.layers_of_stages:
        counts = [int(n) for n in args.layers_of_stages.split(",")]
        assert len(counts) == stages and sum(counts) == LAYERS, "--layers-of-stages does not cover the layers"
    else:
        counts = [LAYERS // stages + (s < LAYERS % stages) for s in range(stages)]
    ends = [sum(counts[:s + 1]) for s in range(stages)]
    return list(zip([0] + ends[:-1], ends))


def build(first, last):
    torch.set_default_dtype(dtype)
    with device:
        stage = Stage(first, last)
    torch.set_default_dtype(torch.float32)
    if args.tensor > 1:
        cut_matrices(stage)
    if args.compile:
        for layer in stage.layers:
            layer.compile()
    if data_ranks > 1 or (dtype == torch.float32 and cuda):
        options = {"mesh": mesh["data"], "mp_policy": MixedPrecisionPolicy(compute, torch.float32),
                   "reshard_after_forward": args.zero == 3}
        for layer in stage.layers:
            fully_shard(layer, **options)
        options["reshard_after_forward"] = False  # the loss, outside of it, uses the head
        fully_shard(stage, **options)
    return stage


if args.async_tensor:
    from torch.distributed._symmetric_memory import enable_symm_mem_for_group
    torch._inductor.config._micro_pipeline_tp = True
    enable_symm_mem_for_group(mesh["tensor"].get_group().group_name)
torch._functorch.config.donated_buffer = False  # a backward in two parts reads buffers twice

rows = args.micro_batch * args.micro_batches
tokens = torch.randint(0, VOCABULARY, (rows, T), device=device)
labels = tokens.clone()
scheme = get_schedule_class(args.schedule) if args.pipeline > 1 else None
if scheme is None:
    stages = [build(0, LAYERS)]
    loss_of = Loss(stages[0])

    def forward_and_backward():
        for x, y in zip(tokens.split(args.micro_batch), labels.split(args.micro_batch)):
            (loss_of(stages[0](x), y) / args.micro_batches).backward()
else:
    multiple = issubclass(scheme, PipelineScheduleMulti)
    chunks = 2 if multiple else 1
    count = args.pipeline * chunks
    own = mesh.get_local_rank("pipeline")
    if not multiple:
        numbers = [own]
    elif args.schedule in ("ZBVZeroBubble", "DualPipeV"):
        numbers = [own, count - 1 - own]
    else:
        numbers = [own, own + args.pipeline]
    bounds = stage_bounds(count)
    stages = [build(*bounds[n]) for n in numbers]
    # Given, or a rank with neighbouring stages would send shapes to itself.
    hidden = torch.empty(args.micro_batch, T // args.tensor, WIDTH, dtype=compute, device="meta")
    if not cuda:  # gloo cannot send to its own rank, which NCCL's first operations do
        PipelineStage._get_init_p2p_neighbors_ops = lambda _: []
    placed = [PipelineStage(module, n, count, device, group=mesh.get_group("pipeline"), output_args=hidden,
                            input_args=tokens[:args.micro_batch].to("meta") if n == 0 else hidden)
              for module, n in zip(stages, numbers)]
    has_last = count - 1 in numbers
    loss_of = Loss(stages[numbers.index(count - 1)]) if has_last else (lambda *_: None)
    schedule = scheme(placed if multiple else placed[0], args.micro_batches, loss_fn=loss_of)

    def forward_and_backward():
        inputs = (tokens,) if 0 in numbers else ()
        schedule.step(*inputs, target=labels if has_last else None)

parameters = [p for stage in stages for p in stage.parameters()]
optimizer = torch.optim.AdamW(parameters, lr=1e-5, betas=(0.9, 0.95), weight_decay=0.01, fused=cuda)


def step():
    labels.random_(0, VOCABULARY)  # a solved batch has zero gradients, and products of zeros run faster than of data
    with loss_parallel() if args.tensor > 1 else contextlib.nullcontext():
        forward_and_backward()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def now():
    if cuda:
        torch.cuda.synchronize()
    return time.perf_counter()


begin = now()
for _ in range(args.warmup):
    step()
warm_s = now() - begin
dist.barrier()
seconds = []
for _ in range(args.steps):
    begin = now()
    step()
    seconds.append(now() - begin)
median = statistics.median(seconds)
peak = torch.tensor([torch.cuda.max_memory_allocated() / 2**30 if cuda else 0.0], device=device)
dist.all_reduce(peak, dist.ReduceOp.MAX)
if RANK == 0:
    print(json.dumps({"peer": "torch", "version": torch.__version__, "ranks": WORLD, "data": data_ranks, "tensor": args.tensor,
                      "pipeline": args.pipeline, "schedule": args.schedule if args.pipeline > 1 else "",
                      "async_tensor": args.async_tensor, "compiled": args.compile, "states": args.states, "zero": args.zero,
                      "tokens_per_step": data_ranks * rows * T, "step_ms": round(median * 1e3, 2),
                      "tokens_per_s_per_gpu": round(data_ranks * rows * T / median / WORLD, 1),
                      "peak_gib": round(peak.item(), 2), "first_steps_s": round(warm_s, 1)}), flush=True)
dist.barrier()
dist.destroy_process_group()
