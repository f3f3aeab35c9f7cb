#pragma once

#include <string>
#include <vector>

#include "engine/bench/tables.h"
#include "engine/bench/zero_plan.h"

namespace dstrain::bench {

[[nodiscard]] inline std::string way_words(const CaseResult& result) {
  return way_words(result.which.way);
}

/// Which way holds least memory, which is fastest, and how far plan and measurement are apart.
[[nodiscard]] std::vector<std::string> stage_sentences(const CaseList& cells);
/// What offload saves and costs; of cells without and with it.
[[nodiscard]] std::vector<std::string> offload_sentences(const std::vector<CasePair>& pairs);
/// Time that pinned host memory takes beside pageable; of such cells in pairs.
[[nodiscard]] std::vector<std::string> pinned_sentences(const std::vector<CasePair>& pairs);
/// Whether memory stayed constant and how much of the rate is left; `cells` by ranks.
[[nodiscard]] std::vector<std::string> scaling_sentences(const CaseList& cells);
/// A sentence on cells of one rank, where all stages are the same.
[[nodiscard]] std::vector<std::string> one_rank_sentences(const CaseList& cells);

}  // namespace dstrain::bench
