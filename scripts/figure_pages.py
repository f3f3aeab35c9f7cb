"""The pages that scripts/figures.py renders: what each table shows of its rows, and what a reader must know beside it. A page that is full names
its cases; a new one that belongs on the page takes the place of another there."""
from figure_rows import Column, Page, Table, day, figure, of_one_gpu, peer_figure, ratio, shown, with_plan

STRONG = "torch_strong.py"
GIB = with_plan("memory_gib", "planned_gib")


def on(hardware, *ranks):
    return lambda row: row["hardware"] == hardware and (not ranks or row["ranks"] in ranks)


def planned(row):
    return shown(row["planned_ms"]) + (f" of {shown(row['step_ms'])}" if row["planned_ms"] else "")


def beside(row):
    """The peer's figure, with its unit where it is another one than ours."""
    return f"{row['peer']}: {peer_figure(row).removesuffix(' ' + figure(row).split(' ')[-1])}" if row["peer"] else ""


def beside_step(row):
    """The same where the table has steps."""
    peer = row["peer"].replace("torch 2.11 (torch_parallel.py)", "torch 2.11").replace("PyTorch, transformers", "transformers")
    return f"{peer}: {shown(row['peer_ms'])}" if row["peer"] else ""


TRANSFORMERS = [f"{model}, {states}" for model in (
    "Qwen2.5-3B, 4 x 4096", "Qwen2.5-3B, 16 x 1024", "BLOOM-560m, 8 x 2048", "ViT-H/14, 64 images", "ViT-B/16, 128 images")
    for states in ("fp32 master", "bf16 states")]
MODELS = Page("recipes/BENCHMARKS.md", "recipes/benchmarks", """
# Rates and memory, measured

Rendered by `scripts/figures.py` from the rows of [benchmarks/](benchmarks). They name date, commit and command of each figure and hold more
cases: H100s, CIFAR-100, all cells of tables. `scripts/benchmark --record` adds rows.

CUDA 13.0, LibTorch 2.11, NCCL 2.28, NVLink without multicast; random weights and data, which go through the loader. A line is the newest row of its case (month and day of 2026); GiB, MFU and plans that it lacks are those of an older one. "a, b" are two runs. Rates are tokens or images per second and GPU, of the
median step in a run's second half. GiB are allocated on rank 0; brackets hold what `dstrain plan` said. A ratio is how many times as fast as
the peer in the newest call that ran both, which may be older than the row: cards and hours differ by 4 %. Aims and bars: what we want.
""", [
    Table("Transformers on one H200, beside the strong peer",
          "The peer is hand-written, compiled PyTorch: cuDNN attention first, no recomputation, fused AdamW, states as ours. Limit: 989.4 TFLOP/s; "
          "Qwen2.5-3B reaches 57.1 to 59.0 % of it, with products in FP8 76.3 %.",
          "transformers.tsv", [
              Column("run", "case"), Column("newest", day), Column("rate", figure), Column("GiB", GIB), Column("aim", "limit"),
              Column("one call: ours, ms", "step_ms", "peer_ms"), Column("peer, ms", "peer_ms", "peer_ms"),
              Column("peer, GiB", "peer_gib", "peer_ms"), Column("ratio", ratio, "peer_ms")],
          on("H200"), TRANSFORMERS),
    Table("Further forms on one H200",
          "Adapters of rank 16, beside those with dropout; other families beside compiled transformers 5.17.",
          "transformers.tsv", [
              Column("run", "case"), Column("newest", day), Column("rate or step", figure), Column("GiB", GIB), Column("aim", "limit"),
              Column("peer", beside, "peer"), Column("ratio", ratio, "peer")],
          on("H200"), (
              "Qwen2.5-3B, adapters of attention, rank 16, 16 x 1024", "Qwen2.5-3B, adapters of all maps, rank 16, 16 x 1024",
              "Qwen1.5-MoE-A2.7B of 8 layers, 4 x 4096, bf16 states", "Mistral 7B v0.1, 1 x 8192 with its window, bf16 states",
              "OLMo 2 1B, 4 x 4096, bf16 states", "Phi-4-mini, 2 x 4096, bf16 states",
              "GPT-2 medium, 16 x 1024, bf16 states", "Gemma 2 2B, 2 x 4096, bf16 states", "Gemma 3 1B, 4 x 4096, bf16 states",
              "DINOv2-Base, 128 images, fp32 master")),
    Table("Convolutional networks on one H200",
          "`dstrain bench step recipes/cnn/MODEL_random_ddp.yaml`, fp32 master weights; peer: timm's, compiled; of two at once: ours, one by one.",
          "images.tsv", [
              Column("run", "case"), Column("newest", day), Column("rate", figure), Column("bar", "limit"),
              Column("planned of measured, ms", planned, "planned_ms"), Column("GiB", GIB, "memory_gib"), Column("peer", peer_figure, "peer_ms"),
              Column("peer, GiB", "peer_gib", "peer_ms"), Column("ratio", ratio, "peer_ms")],
          on("H200"), (
              "MobileNetV2, 256 images", "EfficientNet-B0, 256 images", "ResNet-50, 256 images", "VGG-16, 128 images",
              "MobileNetV2, 2 x 32 images, two at once", "EfficientNet-B0, 2 x 256 images, two at once",
              "ensemble of the recipe, 8 x 4 images, two at once")),
    Table("Qwen2.5-3B on two and four H200 by layout",
          "Micro-batches x samples of 1,024 tokens, 16,384 tokens a step and GPU, `precision.states: bf16`. One GPU takes 541.7 to 560.8 ms in "
          "4 x 4 and 531.3 in 1 x 16. Bars: tensor 2 at 0.92 of one GPU, tensor 4 at 0.82. Limits: the power of the cards, exchanges.",
          "layouts.tsv", [
              Column("layout", "case"), Column("newest", day), Column("step, ms", "step_ms"), Column("MFU", "mfu", "mfu"),
              Column("planned of measured, ms", planned, "planned_ms"), Column("GiB", GIB, "memory_gib"), Column("of one GPU", of_one_gpu, "one_gpu_ms"),
              Column("peer, ms", beside_step, "peer"),
              Column("ratio", ratio, "peer")],
          on("H200", "2", "4"), (
              "data 4, ZeRO-1, 1 x 16", "data 4, ZeRO-3, 1 x 16", "data 4, ZeRO-2, 4 x 4", "data 4, ZeRO-2, 4 x 4, bf16 gradients",
              "pipeline 2 x data 2, ZeRO-1, zero bubble, 8 x 4", "pipeline 4, zero bubble, 16 x 4", "tensor 2 x data 2, ZeRO-1, 8 x 4",
              "pipeline 2 x tensor 2, zero bubble, 16 x 4", "tensor 4, two at once, 4 x 16", "sequence 4, two at once, 16 x 4",
              "one sample of 131,072 tokens, sequence 4", "mixture of experts, expert 4, 4 x 4 x 4096 tokens",
              "tensor 2, two at once, 2 x 16", "sequence 2, 8 x 4", "data 2, ZeRO-3, 1 x 16")),
    Table("Data parallel on four H200",
          "A step of four beside one GPU with as many images or tokens for each; peers are exchanges by NCCL instead of copies "
          "(`parallel.peer_copies: false`) and transformers' ViT-B under DDP and FSDP2.",
          "data_parallel.tsv", [
              Column("run", "case"), Column("date", day), Column("step, ms", "step_ms"), Column("one GPU, ms", "one_gpu_ms"),
              Column("of one GPU", of_one_gpu), Column("bar", lambda row: row["limit"].removesuffix(" of one GPU"), "limit"),
              Column("peer, ms", beside_step, "peer"), Column("ratio", ratio, "peer")],
          lambda row: on("H200", "4")(row) and row["one_gpu_ms"], (
              "ViT-H, 64 images, DDP", "ViT-H, 64 images, ZeRO-3", "ViT-B, 128 images, DDP",
              "ViT-B, 128 images, ZeRO-3", "Qwen2.5-3B, 4 x 4 x 1024, DDP", "Qwen2.5-3B, 4 x 4 x 1024, ZeRO-3",
              "VGG-16, 64 images, ZeRO-1", "ResNet-50, 128 images, ZeRO-3", "MobileNetV2, 128 images, ZeRO-3")),
    Table("States in host memory, one H200",
          "`dstrain bench step RECIPE --set memory.offload...`. Limit: a link of 88 GB/s both ways, 837 ms for fp32 states of Qwen2.5-3B "
          "(65,536 tokens a step). BLOOM-7b1 does not fit without offload.",
          "offload.tsv", [
              Column("run", "case"), Column("rate", figure), Column("planned of measured, ms", planned), Column("GiB", GIB),
              Column("of the rate without", of_one_gpu), Column("host GiB", with_plan("host_gib", "planned_host_gib"))],
          on("H200"), (
              "Qwen2.5-3B, states pinned", "Qwen2.5-3B, states pinned, weights in halves",
              "Qwen2.5-3B, bf16 states, moments pinned",
              "BLOOM-7b1, 4 x 2048 x 8, states pinned", "Qwen2.5-14B, bf16 states, moments pinned")),
    Table("States in host memory, two H200: BLOOM-560m, 16 x 512 tokens a GPU",
          "DeepSpeed 0.19.8 in another call. Aim: 0.8 of the rate without offload, 147.0k and 144.3k tok/s. Rates of one call differ from "
          "those of another by 8 %.",
          "zero_offload.tsv", [
              Column("cell", "case"), Column("rate", "rate"), Column("planned of measured, ms", planned),
              Column("allocated MiB", with_plan("allocated_mib", "planned_allocated_mib")), Column("DeepSpeed", "peer_rate"),
              Column("ratio", lambda row: ratio(row | {"peer_ms": ""}))],
          lambda row: row["peer"]),
    Table("ZeRO-3 of BLOOM-560m over a slow link (2 x 2 H200, loopback sockets)",
          "Limit: 5.4 to 6.5 GB/s. Losses of a small model stay within 1.1 %; int4 gathers cost it 11 %.",
          "zeropp.tsv", [
              Column("form", lambda row: row["case"].split(": ", 1)[1]), Column("step, ms", "step_ms"), Column("planned, ms", "planned_ms"),
              Column("of plain", ratio)],
          lambda row: row["commit"] == "6a15c5f"),
    Table("Seconds from the start of the process to the end of the first step (one H100)", "Aim: 5.",
          "start.tsv", [
              Column("run", "case"), Column("all", "all_s"), Column("program", "load_s"), Column("model, plan", "plan_s"),
              Column("weights", "states_s"), Column("first step", "first_step_s")],
          on("H100"), ("Qwen2.5-3B, choices at hand", "Qwen2.5-3B, choices measured", "ViT-H, 64 images")),
    Table("Images per second by threads",
          "`dstrain bench images`, JPEG files of 500 x 375. Limit: the rate of the model, above. What training loses: `image_training.tsv`.",
          "image_input.tsv", [
              Column("data", "case"), Column("card", "hardware"), Column("1", "t1"), Column("4", "t4"), Column("16", "t16"),
              Column("ms of a core", "core_ms")],
          lambda row: "one core" not in row["case"] and ("whole" not in row["case"] or "files" in row["case"])),
], """
Files without a table here: `checks.tsv` (what passed on GPUs),
`observing.tsv` (what timing and traces cost), `recompute.tsv` (choices of `memory.recompute: auto`), `small_cards.tsv` (long samples), `graphs.tsv`, `blocks.tsv` (measured layers), `losses.tsv` (ends of runs), `zeropp_losses.tsv`, `machine.tsv` (rates of links, memory, copies). Not kept: [TRIED.md](../engine/kernels/TRIED.md).
""")

KERNELS = Page("engine/kernels/BENCHMARKS.md", "engine/kernels/benchmarks", """
# Kernels, measured

Rendered by `scripts/figures.py` from the rows of [benchmarks/](benchmarks), which name date, command and the test of each kernel.

M rows, D width, F hidden width, E experts of which a row takes k, B samples, C channels, e bytes an element, n parameters of the shard, I and
O elements of input and output. Figures: bf16, median time and share of 4.29 TB/s, the copy rate of one NVIDIA H200, by `test_gpu "[.bench]"`.
Language models: Qwen2.5-3B (width 2048, hidden 11,008) where none is named, else BLOOM-560m (1024, 4096), 16,384 tokens.
Farthest from their limit: patchify with patch 14 (4-byte accesses), augment, dropout, add_layer_norm_backward, vocab_loss.
""", [
    Table("", "", "kernels.tsv", [
        Column("kernel", "case"), Column("bytes moved", "bytes"), Column("ViT-B/16, 128", "vit_base"), Column("ViT-H/14, 64", "vit_huge"),
        Column("language model", "language_model")],
        lambda row: row["hardware"] in ("H200", "")),
    Table("Attention of a layer", "Limit: 989.4 TFLOP/s, which heads of 64 and 80 do not come near.", "attention.tsv", [
        Column("model", "case"), Column("card", "hardware"), Column("forward", "forward"), Column("backward", "backward")]),
    Table("Products of experts", "TFLOP/s on one H200, the matrix [2 I, D] and then [D, I].", "experts.tsv", [
        Column("model, rows an expert", "case"), Column("grouped", "grouped"),
        Column("one by one", "one_by_one"), Column("input gradient: grouped", "input_grouped"), Column("one by one", "input_one_by_one"),
        Column("weight gradient", "weight")]),
    Table("Convolutional networks: our kernels", "One H100 (3.35 TB/s by its data sheet), 256 images, bf16; shapes are pixels, channels and stride.",
          "conv.tsv", [
              Column("kernel", "case"), Column("forward", "forward"), Column("apply", "apply"), Column("backward", "backward"),
              Column("backward apply", "backward_apply")]),
    Table("Convolutional networks: libraries", "One H200 (a copy: 4.22 TB/s); shapes are pixels, channels in and out, kernel.",
          "conv_libraries.tsv", [
              Column("what", "case"), Column("forward", "forward"), Column("input gradient", "input_gradient"),
              Column("weight gradient", "weight_gradient"), Column("unit", "unit")],
          lambda row: row["unit"] and "1x1" not in row["case"]),
], """
Files without a table here: `changes.tsv`: each change that was kept, predicted and measured. `conv_parts.tsv`: parts of steps of convolutional networks, predicted and
measured. `sanitizers.tsv`: what compute-sanitizer found. `kernels.tsv` has rows of an H100, too. Not kept: [TRIED.md](TRIED.md).
""")

PAGES = [MODELS, KERNELS]
