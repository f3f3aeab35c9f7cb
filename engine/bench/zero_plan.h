#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/bench/bench_plan.h"

namespace dstrain::bench {

/// "none", "optimizer", "optimizer+parameters". Error{usage} for others.
[[nodiscard]] ZeroOffload zero_offload(std::string_view name);
[[nodiscard]] std::string offload_name(ZeroOffload offload);

/// "stage 2 + optimizer, pinned".
[[nodiscard]] std::string way_words(const ZeroWay& way);

/// What `dstrain bench zero` runs.
struct ZeroOptions : BenchOptions {  ///< its ranks: each with every way
  std::vector<int> stages = {0, 1, 2, 3};
  std::vector<ZeroOffload> offloads = {ZeroOffload::none, ZeroOffload::optimizer};
  std::vector<bool> pinned = {true};
  std::vector<int> scaling;  ///< numbers of ranks of the weak scaling
  int samples_per_rank = 0;  ///< of the weak scaling; 0: the recipe's samples for all
};

/// Every recipe, number of ranks and way; parameters are offloaded under stage 3 or on one rank
/// alone. One rank divides nothing and runs under the first stage alone. Then weak scaling under
/// that stage without offload. Error{usage} where no way is left of `ranks`.
[[nodiscard]] BenchPlan zero_plan(const ZeroOptions& options);

}  // namespace dstrain::bench
