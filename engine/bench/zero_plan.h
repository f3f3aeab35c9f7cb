#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/bench/bench_plan.h"

namespace dstrain::bench {

/// What rests on the host.
enum class ZeroOffload { none, optimizer, optimizer_and_parameters };
/// "none", "optimizer", "optimizer+parameters". Error{usage} for others.
[[nodiscard]] ZeroOffload zero_offload(std::string_view name);
[[nodiscard]] std::string offload_name(ZeroOffload offload);

/// How the states of a training are held.
struct ZeroWay {
  int stage = 0;
  ZeroOffload offload = ZeroOffload::none;
  bool pinned = true;  ///< host memory is page-locked; without offload always true

  bool operator==(const ZeroWay&) const = default;
};
/// "stage 2 + optimizer, pinned".
[[nodiscard]] std::string way_words(const ZeroWay& way);

/// What `dstrain bench zero` runs.
struct ZeroOptions {
  std::vector<std::string> recipes;  ///< files
  std::vector<int> ranks;            ///< each with every way
  std::vector<int> stages = {0, 1, 2, 3};
  std::vector<ZeroOffload> offloads = {ZeroOffload::none, ZeroOffload::optimizer};
  std::vector<bool> pinned = {true};
  std::vector<int> scaling;            ///< numbers of ranks of the weak scaling
  int samples_per_rank = 0;            ///< of the weak scaling; 0: the recipe's samples for all
  std::vector<std::string> overrides;  ///< of every run
};

/// The ways whatever the number of ranks, in the order of BenchPlan::variants.
[[nodiscard]] std::vector<ZeroWay> zero_ways(const ZeroOptions& options);
/// Every recipe, number of ranks and way; parameters are offloaded under stage 3 or on one rank
/// alone. One rank divides nothing and runs under the first stage alone. Error{usage} where nothing
/// is left.
[[nodiscard]] BenchPlan zero_plan(const ZeroOptions& options);
/// Weak scaling under the first stage without offload: batch.global of the recipe is for the first
/// number of ranks.
[[nodiscard]] BenchPlan zero_scaling_plan(const ZeroOptions& options);

}  // namespace dstrain::bench
