#pragma once

#include <array>
#include <cstdint>

namespace dstrain {

/// The parts of a sample that a rank of the sequence axis works on: of 2 `ranks` equal ones in
/// their order, those `rank` and 2 `ranks` - 1 - `rank`. Causal attention is then the same work on
/// all ranks. Dubey et al. 2024, arXiv:2407.21783, sec. 3.3.2.
struct Zigzag {
  std::int64_t ranks = 1;
  std::int64_t rank = 0;

  [[nodiscard]] std::int64_t parts() const { return 2 * ranks; }
  [[nodiscard]] std::array<std::int64_t, 2> own() const { return {rank, parts() - 1 - rank}; }
  /// Place of own row `row` among those of all ranks, for samples of `tokens` tokens.
  [[nodiscard]] std::int64_t whole_row(std::int64_t row, std::int64_t tokens) const {
    const std::int64_t part = tokens / parts(), own_part = row / part;
    return own_part / 2 * tokens + own()[static_cast<std::size_t>(own_part % 2)] * part +
           row % part;
  }
};

}  // namespace dstrain
