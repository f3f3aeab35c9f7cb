#include "engine/bench/zero_plan.h"

#include <fmt/format.h>

#include <utility>

#include "engine/base/error.h"

namespace dstrain::bench {
namespace {

constexpr std::string_view kOffloads[] = {"none", "optimizer", "optimizer+parameters"};

/// The part of a case that its way says.
Case case_of(const ZeroWay& way) {
  const std::string place = way.pinned ? "pinned" : "pageable";
  const auto placed = [&](bool offloaded) { return offloaded ? place : "none"; };
  Case made{.name = fmt::format("zero{}", way.stage),
            .overrides = {fmt::format("parallel.zero.stage={}", way.stage)},
            .way = way};
  if (way.offload != ZeroOffload::none)
    made.name += fmt::format("+{}+{}", offload_name(way.offload), place);
  made.overrides.push_back("memory.offload.optimizer=" + placed(way.offload != ZeroOffload::none));
  made.overrides.push_back("memory.offload.parameters=" +
                           placed(way.offload == ZeroOffload::optimizer_and_parameters));
  return made;
}

/// The ways whatever the number of ranks.
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

BenchPlan zero_plan(const ZeroOptions& options) {
  // Runs of the recipe's own length, memory sampled ten times a second.
  BenchPlan plan{
      .recipes = options.recipes, .repeat = 1, .steps = 0, .overrides = {"metrics.sample_s=0.1"}};
  plan.overrides.insert(plan.overrides.end(), options.overrides.begin(), options.overrides.end());
  const auto add = [&](Case one, std::size_t recipe, int ranks) {
    one.recipe = recipe;
    one.ranks = ranks;
    plan.cases.push_back(std::move(one));
  };
  for (std::size_t recipe = 0; recipe < plan.recipes.size(); ++recipe) {
    for (const int ranks : options.ranks) {
      for (const ZeroWay& way : zero_ways(options)) {
        if (wanted(way, ranks, options)) add(case_of(way), recipe, ranks);
      }
    }
  }
  if (plan.cases.empty() && !options.ranks.empty()) {
    throw Error(ErrorKind::usage,
                "--offload optimizer+parameters: parameters are offloaded under stage 3 or on one "
                "rank alone",
                "add 3 to --stages, 1 to --ranks or none to --offload");
  }
  for (std::size_t recipe = 0; recipe < plan.recipes.size(); ++recipe) {
    for (const int ranks : options.scaling) {
      Case weak = case_of({.stage = options.stages.front()});
      weak.name += "-weak";
      weak.weak = true;
      weak.first_ranks = options.scaling.front();
      weak.samples_per_rank = options.samples_per_rank;
      add(std::move(weak), recipe, ranks);
    }
  }
  return plan;
}

}  // namespace dstrain::bench
