#include "engine/bench/zero_plan.h"

#include <fmt/format.h>

#include "engine/base/error.h"

namespace dstrain::bench {
namespace {

constexpr std::string_view kOffloads[] = {"none", "optimizer", "optimizer+parameters"};

Variant variant_of(const ZeroWay& way) {
  const std::string place = way.pinned ? "pinned" : "pageable";
  const auto placed = [&](bool offloaded) { return offloaded ? place : "none"; };
  Variant variant{.name = fmt::format("zero{}", way.stage),
                  .overrides = {fmt::format("parallel.zero.stage={}", way.stage)}};
  if (way.offload != ZeroOffload::none)
    variant.name += fmt::format("+{}+{}", offload_name(way.offload), place);
  variant.overrides.push_back("memory.offload.optimizer=" +
                              placed(way.offload != ZeroOffload::none));
  variant.overrides.push_back("memory.offload.parameters=" +
                              placed(way.offload == ZeroOffload::optimizer_and_parameters));
  return variant;
}

/// Runs at the recipe's own length, memory sampled ten times a second.
BenchPlan plan_of(const ZeroOptions& options) {
  BenchPlan plan{.recipes = options.recipes, .variants = {}, .ranks = {}};
  plan.repeat = 1;
  plan.steps = 0;
  plan.overrides = {"metrics.sample_s=0.1"};
  plan.overrides.insert(plan.overrides.end(), options.overrides.begin(), options.overrides.end());
  return plan;
}

bool wanted(const ZeroWay& way, int ranks, const ZeroOptions& options) {
  if (ranks == 1) return way.stage == options.stages.front();
  return way.offload != ZeroOffload::optimizer_and_parameters || way.stage == 3;
}

}  // namespace

ZeroOffload zero_offload(std::string_view name) {
  for (std::size_t i = 0; i < std::size(kOffloads); ++i) {
    if (kOffloads[i] == name) return static_cast<ZeroOffload>(i);
  }
  throw Error(ErrorKind::usage, fmt::format("--offload: there is no '{}'", name),
              "use none, optimizer or optimizer+parameters");
}

std::string offload_name(ZeroOffload offload) {
  return std::string(kOffloads[static_cast<std::size_t>(offload)]);
}

std::string way_words(const ZeroWay& way) {
  if (way.offload == ZeroOffload::none) return fmt::format("stage {}", way.stage);
  return fmt::format("stage {} + {}, {}", way.stage, offload_name(way.offload),
                     way.pinned ? "pinned" : "pageable");
}

std::vector<ZeroWay> zero_ways(const ZeroOptions& options) {
  std::vector<ZeroWay> ways;
  for (const int stage : options.stages) {
    for (const ZeroOffload offload : options.offloads) {
      if (offload == ZeroOffload::none) {
        ways.push_back({.stage = stage});
        continue;
      }
      for (const bool pinned : options.pinned)
        ways.push_back({.stage = stage, .offload = offload, .pinned = pinned});
    }
  }
  return ways;
}

BenchPlan zero_plan(const ZeroOptions& options) {
  BenchPlan plan = plan_of(options);
  plan.ranks = options.ranks;
  const std::vector<ZeroWay> ways = zero_ways(options);
  for (const ZeroWay& way : ways) plan.variants.push_back(variant_of(way));
  for (std::size_t recipe = 0; recipe < plan.recipes.size(); ++recipe) {
    for (const int ranks : plan.ranks) {
      for (std::size_t way = 0; way < ways.size(); ++way) {
        if (wanted(ways[way], ranks, options))
          plan.chosen.push_back({.recipe = recipe, .variant = way, .ranks = ranks});
      }
    }
  }
  if (plan.chosen.empty() && !plan.ranks.empty()) {
    throw Error(ErrorKind::usage,
                "--offload optimizer+parameters: parameters are offloaded under stage 3 or on one "
                "rank alone",
                "add 3 to --stages, 1 to --ranks or none to --offload");
  }
  return plan;
}

BenchPlan zero_scaling_plan(const ZeroOptions& options) {
  BenchPlan plan = plan_of(options);
  plan.ranks = options.scaling;
  plan.scaling = Scaling::weak;
  plan.samples_per_rank = options.samples_per_rank;
  plan.variants = {variant_of({.stage = options.stages.front()})};
  return plan;
}

}  // namespace dstrain::bench
