#include "engine/program/cpu_threads.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/base/units.h"

namespace dstrain {
namespace {

/// What threads that sleep add to a layer, and to a kernel of a block of images. Steps of small
/// models on two threads took longer than the half of one thread by 0.12 to 0.19 ms for each layer,
/// and by 0.1 to 0.28 ms for each kernel (two cores, 2026-11-30). More threads were not measured.
constexpr double kWakeLayer = 0.14e-3, kWakeKernel = 0.2e-3;
constexpr int kMaxThreads = 1024;

/// Waiting for a thread more in its forward.
double wake_seconds(const BlockCost& block) {
  if (block.forward_kernels.empty())
    return kWakeLayer * static_cast<double>(std::max<std::size_t>(block.layers.size(), 1));
  int launches = 0;
  for (const KernelCost& kernel : block.forward_kernels) launches += kernel.launches;
  return kWakeKernel * std::max(launches, 1);
}

int local_ranks(const Layout& layout, const Machine& machine) {
  return ranks_of_host(layout.degree(kAllAxes), machine);
}

/// How many times as long a thread takes beside those of the `local` ranks of its host.
double turns_of(const Machine& machine, int local) {
  const double all = static_cast<double>(std::max(machine.threads, 1)) * local;
  return machine.cores > 0 ? std::max(1.0, all / machine.cores) : 1;
}

}  // namespace

UsefulThreads useful_threads(const Layout& layout, const ModelCost& cost) {
  if (cost.blocks.empty()) return {};
  Machine machine = cpu();
  machine.launch_s = machine.layer_s = 0;  // threads do not share them
  machine.cores = 0;
  std::vector<UsefulThreads> blocks;
  for (int b = 0; b < static_cast<int>(cost.blocks.size()); ++b) {
    blocks.push_back({.block_s = block_seconds(work::Pass::forward, b, layout, cost, machine) -
                                 exchange_seconds(work::Pass::forward, b, layout, cost, machine),
                      .wake_s = wake_seconds(cost.blocks[static_cast<std::size_t>(b)])});
  }
  std::ranges::sort(blocks, {}, [](const UsefulThreads& one) { return one.block_s / one.wake_s; });
  UsefulThreads median = blocks[(blocks.size() - 1) / 2];
  median.max = static_cast<int>(std::clamp<double>(median.block_s / median.wake_s, 1, kMaxThreads));
  return median;
}

std::string fewer_threads_text(const UsefulThreads& useful, int given) {
  constexpr double kMilli = 1e3;
  return fmt::format(
      "threads: {} of {}, as the forward of the median block is planned with {:.2g} ms on one "
      "thread, and each more wakes up for {:.2g} ms of it",
      useful.max, given, kMilli * useful.block_s, kMilli * useful.wake_s);
}

Machine with_threads(Machine machine, const Layout& layout, const ModelCost& cost) {
  if (machine.threads > 0) return machine;
  machine.threads = std::max(1, machine.cores / local_ranks(layout, machine));
  if (machine.threads > 1)
    machine.threads = std::min(machine.threads, useful_threads(layout, cost).max);
  return machine;
}

Machine rank_rates(Machine machine, const Layout& layout, const ModelCost& cost) {
  machine = with_threads(std::move(machine), layout, cost);
  const double turns = turns_of(machine, local_ranks(layout, machine));
  for (double Machine::*rate :
       {&Machine::flops_per_s, &Machine::fp32_flops_per_s, &Machine::conv_flops_per_s,
        &Machine::vector_flops_per_s, &Machine::memory_bytes_per_s})
    machine.*rate *= machine.threads / turns;
  if (machine.threads > 1) {
    machine.layer_s += kWakeLayer;
    machine.launch_s += kWakeKernel;
  }
  machine.layer_s *= turns;
  machine.launch_s *= turns;
  return machine;
}

std::string hosts_text(const Machine& machine, int world) {
  const int local = ranks_of_host(world, machine);
  const std::int64_t hosts = ceil_div(world, machine.ranks_per_node);
  const std::string ranks = fmt::format("{} rank{}", local, local == 1 ? "" : "s"),
                    cores = fmt::format("{} core{}, {}", machine.cores,
                                        machine.cores == 1 ? "" : "s", machine.cores_source);
  if (turns_of(machine, local) > 1)
    return fmt::format("{}, whose {} share {}", hosts, ranks, cores);
  return fmt::format("{}, {}with {} and {}", hosts, hosts > 1 ? "each " : "", ranks, cores);
}

}  // namespace dstrain
