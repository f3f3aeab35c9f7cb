#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/bench/zero_tables.h"

namespace dstrain::bench {

using CellList = std::vector<const ZeroCell*>;

/// A cell without and with offload.
struct OffloadPair {
  const ZeroCell* without = nullptr;
  const ZeroCell* with = nullptr;
};
/// A cell with pinned and one with pageable host memory.
struct PinnedPair {
  const ZeroCell* pinned = nullptr;
  const ZeroCell* pageable = nullptr;
};

/// Which way holds least memory, which is fastest, and how far plan and measurement are apart.
[[nodiscard]] std::vector<std::string> stage_sentences(const CellList& cells);
/// What offload saves and costs.
[[nodiscard]] std::vector<std::string> offload_sentences(const std::vector<OffloadPair>& pairs);
[[nodiscard]] std::vector<std::string> pinned_sentences(const std::vector<PinnedPair>& pairs);
/// Whether memory stayed constant and how much of the rate is left; `cells` by ranks.
[[nodiscard]] std::vector<std::string> scaling_sentences(const CellList& cells);
/// A sentence on cells of one rank, where all stages are the same.
[[nodiscard]] std::vector<std::string> one_rank_sentences(const CellList& cells);

}  // namespace dstrain::bench
