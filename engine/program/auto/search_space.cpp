#include "engine/program/auto/search_space.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "engine/recipe/axes.h"
#include "engine/recipe/choices.h"

namespace dstrain {
namespace {

constexpr int kMaxSequenceRanks = 64;

std::vector<int> divisors(int number, int max) {
  std::vector<int> list;
  for (int d = 1; d <= std::min(number, max); ++d) {
    if (number % d == 0) list.push_back(d);
  }
  return list;
}

struct Sharing {
  int stage = 0, shard = 0;
};

/// Without data ranks there is nothing to share. Ranks of a node that see different samples share,
/// or those of eight nodes, where that is not all of them: rings over all have too many hops.
std::vector<Sharing> sharings(int data_ranks, int line_in_node, int ranks_per_node) {
  if (data_ranks == 1) return {{}};
  std::vector<Sharing> list = {{}};
  const int node = ranks_per_node / line_in_node;
  for (int stage = 1; stage <= 3; ++stage) {
    list.push_back({stage, 0});
    for (const int shard : {node, 8 * node}) {
      if (shard > 1 && shard < data_ranks && data_ranks % shard == 0)
        list.push_back({stage, shard});
    }
  }
  return list;
}

void add_layout(std::vector<PlanChoice>& list, const SearchSpace& space, PlanChoice choice) {
  const int data = choice.data_ranks(space.ranks);
  const int samples = (space.global + data - 1) / data;
  const int line_ranks = static_cast<int>(product(choice.degrees, kAxesInBlocks));
  const int line = std::min(line_ranks, space.ranks_per_node);
  const bool beside = space.lanes && space.experts == 0 && choice.degrees.pipeline == 1 &&
                      (line_ranks > 1 || space.kernels);
  for (const Sharing& sharing : sharings(data, line, space.ranks_per_node)) {
    choice.zero_stage = sharing.stage;
    choice.shard = sharing.shard;
    for (choice.micro = 1; choice.micro <= samples; choice.micro *= 2) {
      choice.concurrent = 1;
      list.push_back(choice);
      if (!beside || 2 * choice.micro > samples) continue;
      choice.concurrent = 2;
      list.push_back(choice);
    }
  }
}

}  // namespace

std::vector<std::string> settings(const PlanChoice& choice) {
  std::vector<std::string> list;
  for (const AxisKey& key : kAxisKeys)
    list.push_back(fmt::format("parallel.{}={}", axis_name(key.axis), choice.degrees[key.axis]));
  list.insert(list.end(),
              {fmt::format("parallel.zero.stage={}", choice.zero_stage),
               fmt::format("parallel.zero.shard={}", choice.shard),
               fmt::format("parallel.stages.schedule={}", spelling(choice.schedule)),
               fmt::format("parallel.stages.chunks={}", choice.chunks), "parallel.stages.layers=[]",
               "parallel.stages.in_flight=0", fmt::format("batch.micro={}", choice.micro),
               fmt::format("batch.concurrent={}", choice.concurrent), "memory.recompute=auto"});
  return list;
}

std::string describe(const PlanChoice& choice, int ranks) {
  std::vector<std::string> parts, within_data;
  for (const AxisKey& key : kAxisKeys) {
    if (choice.degrees[key.axis] == 1) continue;
    (axis_row(key.axis).other_samples ? within_data : parts)
        .push_back(fmt::format("{} {}", axis_name(key.axis), choice.degrees[key.axis]));
  }
  if (choice.data_ranks(ranks) > 1)
    parts.push_back(fmt::format("data {}", choice.data_ranks(ranks)));
  std::string text = parts.empty() ? "1 rank" : fmt::format("{}", fmt::join(parts, " x "));
  if (!within_data.empty()) text += fmt::format(" ({})", fmt::join(within_data, ", "));
  if (choice.concurrent > 1) text += ", two at once";
  return text;
}

std::vector<PlanChoice> all_choices(const SearchSpace& space) {
  std::vector<PlanChoice> list;
  for (const int tensor : divisors(space.ranks, space.ranks_per_node)) {
    const int left = space.ranks / tensor;
    for (const int sequence : divisors(left, space.text ? kMaxSequenceRanks : 1)) {
      for (const int pipeline : divisors(left / sequence, space.blocks)) {
        const int data = left / sequence / pipeline;
        if (data > space.global) continue;  // some would have no sample
        for (const int expert : divisors(data, std::max(space.experts / tensor, 1)))
          add_layout(list, space,
                     {.degrees = {.pipeline = pipeline,
                                  .expert = expert,
                                  .sequence = sequence,
                                  .tensor = tensor}});
      }
    }
  }
  return list;
}

bool is_default_layout(const PlanChoice& choice, int ranks) {
  return (ranks == 2 || ranks == 8) &&
         choice.degrees == Degrees{.pipeline = 2, .tensor = ranks == 8 ? 2 : 1};
}

}  // namespace dstrain
