#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/product_workspace.h"
#include "engine/program/known_gpus.h"
#include "engine/program/simulate.h"

namespace dstrain {

/// NVIDIA H200 SXM, 141 GB, NVLink without multicast, CUDA 13.0, NCCL 2.28. Measured 2026-11-20
/// except where said.
Machine h200() {
  return {
      .name = "h200",
      // These and the rate of memory are fitted to steps of Qwen2.5-3B, BLOOM-560m, ViT-H and
      // ViT-B, 2026-11-22 to -26, which they meet within 9 % (8192^3 in a burst: 790e12).
      .flops_per_s = 670e12,
      // The share of the datasheet's 67e12 that products of 16 bits reach; not measured.
      .fp32_flops_per_s = 45e12,
      .fp8_flops_per_s = 1250e12,
      // Long sequences, backward counted as twice forward: causal attention of 4,096 tokens
      // reaches 362e12, of 1,024 tokens 220e12, for which kAttentionTraffic stands.
      .attention_flops_per_s = 400e12,
      // Heads of 256, by flash attention: 171e12 (Gemma 3 1B, 4 x 4,096 tokens, 2026-11-30).
      .wide_attention_times = 400.0 / 171,
      // Fitted, with the operations that ImageCosts counts, to depthwise convolutions of 20 shapes
      // on an H100, which has the same processors (engine/kernels/benchmarks/conv.tsv).
      .vector_flops_per_s = 14e12,
      // The smallest kernels of batch norm inside a CUDA graph take 4.4 us, the gap behind a kernel
      // 0.5 (EfficientNet-B0, 128 images, H100).
      .launch_s = 4.9e-6,
      // Backward takes twice that: Qwen2.5-3B on four tensor ranks, 918 ms for 16 micro-batches.
      .host_block_s = 0.5e-3,
      // Device copy: 4.29e12 in a burst; mixed element-wise kernels reach less.
      .memory_bytes_per_s = 3.6e12,
      // Bus bandwidth of all-gather and reduce-scatter on 4 GPUs at 1 GiB (all-reduce: 354e9).
      .link_bytes_per_s = 325e9,
      // One 400 Gbit/s adapter for each of 8 GPUs at 90 % of its rate; not measured.
      .network_bytes_per_s = 8 * 45e9,
      .host_link_bytes_per_s = 52e9,
      // Pinned memory, both directions at once. 16 cores of the host: their AdamW alone, and what
      // copies and updates reach together.
      .host_duplex_bytes_per_s = 88e9,
      .host_memory_bytes_per_s = 100e9,
      // Fitted to nine runs of BLOOM-560m with states on the host on four ranks, 2026-11-26; not
      // measured with eight.
      .host_total_bytes_per_s = 172e9,
      .host_update_bytes_per_s = 110e9,
      .file_read_bytes_per_s = 1.0e9,
      .file_write_bytes_per_s = 1.4e9,
      .collective_latency_s = 20e-6,
      // NCCL's own model of rings by LL128 (src/graph/tuning.cc): 4.0 us to the next of 8-GPU
      // nodes, 1.9 to each of seven inside; not measured.
      .hop_latency_s = (4.0e-6 + 7 * 1.9e-6) / 8,
      .lone_ranks_by_trees = true,
      // Over the time of collectives by the rates above, which they do not reach beside products.
      // Qwen2.5-3B: 0.40 and 0.43 under ZeRO-3 and 2 on two GPUs, 0.33 and 0.32 on four, 0.24 under
      // DDP (the contention of `dstrain bench parallel`, 2026-11-26).
      .collective_compute_share = 0.3,
      .ranks_per_node = 8,
      .peer_copies = true,
      // Beside products its parts are summed, or a copy of them ends late, and two products start
      // in place of one. Beside another micro-batch copies run one after the other, and kernels
      // when those of the other micro-batch leave room. Fitted to seven steps of Qwen2.5-3B on two
      // and four H200, micro-batches of 4 to 32 samples (recipes/benchmarks/layouts.tsv).
      .copy_beside_product_s = 5e-6,
      .copy_beside_product_bytes_per_s = 1100e9,
      .copy_beside_batch_s = 8e-6,
      .copy_beside_batch_bytes_per_s = 750e9,
      .device_memory = 150'109'000'000,  // 139.8 GiB as the driver reports it
      // Outside the allocator: 839 MiB on one rank, 2.04 GiB with two communicators (DDP), 2.52 GiB
      // with three (ZeRO).
      .fixed_overhead = Bytes{839} << 20,
      // Context, libraries and loader of a rank: 1.3 to 1.5 GiB in runs of Qwen2.5, BLOOM, ViT-H
      // and MobileNetV2 on H200 and H100, 2026-11-23 and -24.
      .host_base = Bytes{1434} << 20,
      .communicator_overhead = Bytes{590} << 20,
      .product_workspace = kProductWorkspace,
      .limits = limits_of_capability(9, 0),
  };
}

/// NVIDIA H100 SXM, 80 GB, of the same hosts. Measured 2026-11-24 except where said.
Machine h100() {
  Machine machine = h200();
  machine.name = "h100";
  // Fitted in the same way.
  machine.flops_per_s = 660e12;
  // FP8 products of a layer of Qwen2.5-3B reach 1,420e12 alone, its bf16 products 743e12.
  machine.fp8_flops_per_s = 1180e12;
  // 0.94 of the device copy of 3.02e12.
  machine.memory_bytes_per_s = 2.85e12;
  machine.device_memory = 85'017'493'504;  // 79.2 GiB as the driver reports it
  return machine;
}

/// Two ranks on a small machine without a GPU, one core and 8 GiB each.
Machine cpu() {
  return {
      .name = "cpu",
      // Fitted, as are the rates of memory, convolutions and other arithmetic and the times to
      // begin, to steps of 31 small models in fp32 on one thread of a Xeon with AVX-512 (ViTs,
      // BLOOMs, Qwens, MobileNetV2, EfficientNet, ConvNeXt, ResNet), 2026-11-30: 28 of them are met
      // within 25 %. Slower than planned are a head of 32,000 tokens on a width of 64, as its
      // softmax is not counted, and ResNet-50 on 32 pixels, whose weights are reordered.
      .flops_per_s = 107e9,
      .vector_flops_per_s = 4.8e9,
      .conv_flops_per_s = 48e9,
      .launch_s = 85e-6,
      .layer_s = 38e-6,
      .memory_bytes_per_s = 17e9,
      .link_bytes_per_s = 1e9,
      .network_bytes_per_s = 0.1e9,
      .host_link_bytes_per_s = 8e9,
      .host_duplex_bytes_per_s = 8e9,
      .host_memory_bytes_per_s = 8e9,
      .host_update_bytes_per_s = 8e9,
      .file_read_bytes_per_s = 0.5e9,
      .file_write_bytes_per_s = 0.5e9,
      .collective_latency_s = 200e-6,
      // Estimated; `doctor --measure` finds 1.8e9 and 12 us on two cores, where ranks come to each
      // collective at once. Steps of four small models on two ranks are met within 22 %,
      // 2026-11-30.
      .shared_bytes_per_s = 2e9,
      .shared_latency_s = 40e-6,
      .hop_latency_s = 100e-6,
      .ranks_per_node = 2,
      .device_memory = Bytes{8} << 30,
      .fixed_overhead = Bytes{405} << 20,  // the process with its libraries, 2026-11-30
      .communicator_overhead = 0,
      .shares_memory = true,
      .cores = 2,
      .collectives_alone = true,
  };
}

int ranks_of_host(int world, const Machine& machine) {
  return std::min(world, machine.ranks_per_node);
}

double datasheet_flops(const std::string& gpu) {
  const KnownGpu* known = find_gpu(gpu);
  return known != nullptr ? known->flops_per_s() : 0;
}

Machine built_in_machine(const std::string& device) {
  if (device == "CPU") return cpu();
  const KnownGpu* gpu = find_gpu(device);
  if (gpu != nullptr) return find_machine(gpu->name);
  Machine machine = h200();
  machine.name += fmt::format(", as those of '{}' are not known: dstrain doctor --measure", device);
  return machine;
}

std::vector<std::string> built_in_machines() { return {h200().name, h100().name, cpu().name}; }

Machine find_machine(const std::string& name) {
  for (const Machine& machine : {h200(), h100(), cpu()}) {
    if (machine.name == name) return machine;
  }
  for (const KnownGpu& gpu : known_gpus()) {
    if (name == gpu.name) return estimated_machine(gpu);
  }
  throw Error(ErrorKind::usage, fmt::format("no machine is called '{}'", name),
              fmt::format("use {}", fmt::join(machine_names(), ", ")));
}

}  // namespace dstrain
