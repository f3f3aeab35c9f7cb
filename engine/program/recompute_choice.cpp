#include "engine/program/recompute_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace dstrain {
namespace {

/// Blocks of the coordinate whose recomputation frees anything, the cheapest first.
std::vector<std::size_t> candidates(const Layout& layout, const ModelCost& cost, int coordinate) {
  const auto trains = [&](const BlockCost& block) {
    return std::ranges::any_of(
        block.groups, [&](int g) { return layout.groups[static_cast<std::size_t>(g)].trainable; });
  };
  const auto first =
      static_cast<std::size_t>(std::ranges::find_if(cost.blocks, trains) - cost.blocks.begin());
  std::vector<std::size_t> list;
  for (std::size_t b = first; b + 1 < cost.blocks.size(); ++b) {
    if (layout.stages.rank_of(static_cast<int>(b)) != coordinate) continue;
    if (cost.blocks[b].saved_bytes > 0) list.push_back(b);
  }
  const auto flops_per_byte = [&](std::size_t b) {
    return cost.blocks[b].forward_flops / static_cast<double>(cost.blocks[b].saved_bytes);
  };
  std::ranges::stable_sort(list, {}, flops_per_byte);
  return list;
}

}  // namespace

MemoryLimit memory_limit(const Recipe& recipe, const Program& program, const Layout& layout,
                         const ModelCost& cost, const Machine& machine) {
  MemoryLimit limit{.fixed = product_memory(program, cost, machine) +
                             fixed_memory(program, layout, cost, machine)};
  if (recipe.memory.limit > 0) {
    limit.bytes = std::llround(std::ldexp(recipe.memory.limit, 30));
  } else if (!machine.shares_memory) {
    const auto memory = static_cast<double>(machine.device_memory);
    limit.bytes = std::llround(memory * (1 - kMemoryReserve));
  }
  return limit;
}

RecomputeChoice choose_recompute(const Layout& layout, const ModelCost& cost,
                                 const ProgramOptions& options, const MemoryLimit& limit,
                                 int coordinate) {
  ProgramOptions tried = options;
  // Further ones hold nothing more.
  if (options.schedule.empty())
    tried.micro_batches = std::min(options.micro_batches, 2 * layout.pipeline_degree());
  const auto needed = [&](const std::vector<bool>& blocks) {
    tried.recompute = blocks;
    return peak_memory(training_program(layout, cost, tried, coordinate)).total() + limit.fixed;
  };
  RecomputeChoice choice{.blocks = std::vector<bool>(cost.blocks.size()), .limit = limit.bytes};
  const auto fits = [&] { return choice.needed <= limit.bytes; };
  if (limit.bytes > 0 && options.keep_hidden) {
    choice.needed = choice.needed_without = needed(choice.blocks);
    choice.keep_hidden =
        static_cast<double>(choice.needed) <= kHiddenShare * static_cast<double>(limit.bytes);
    if (choice.keep_hidden) return choice;
  }
  tried.keep_hidden = false;
  choice.needed = choice.needed_without = needed(choice.blocks);
  if (limit.bytes == 0 || fits()) return choice;
  std::vector<std::size_t> chosen;
  for (const std::size_t block : candidates(layout, cost, coordinate)) {
    chosen.push_back(block);
    choice.blocks[block] = true;
    choice.needed = needed(choice.blocks);
    if (fits()) break;
  }
  if (!fits()) return choice;
  // A dear block may have made cheaper ones superfluous; the dearest is asked first.
  std::ranges::reverse(chosen);
  for (const std::size_t block : chosen) {
    RecomputeChoice less = choice;
    less.blocks[block] = false;
    less.needed = needed(less.blocks);
    if (less.needed <= limit.bytes) choice = less;
  }
  return choice;
}

std::string describe(const RecomputeChoice& choice) {
  if (choice.limit == 0) return "none, as no limit of the memory is known (memory.limit sets one)";
  const std::string of = " of " + format_bytes(choice.limit);
  const auto count = std::ranges::count(choice.blocks, true);
  if (count == 0 && choice.needed <= choice.limit) {
    return fmt::format("none{}, as the plan needs {}{}",
                       choice.keep_hidden ? ", and outputs of activation functions are kept" : "",
                       format_bytes(choice.needed), of);
  }
  const std::string blocks = fmt::format("{} of {} blocks", count, choice.blocks.size() - 1);
  if (choice.needed > choice.limit)
    return blocks + ", and the plan still needs " + format_bytes(choice.needed) + of;
  return blocks + ", as the plan needs " + format_bytes(choice.needed_without) + of;
}

}  // namespace dstrain
