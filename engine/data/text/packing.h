#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace dstrain::text {

/// Which samples share a row: those of row r are samples[begins[r]] to samples[begins[r + 1] - 1].
struct Packing {
  std::vector<std::uint32_t> begins;   ///< [rows + 1]
  std::vector<std::uint32_t> samples;  ///< each sample once
  int max_samples = 0;                 ///< samples of the fullest row
  [[nodiscard]] std::int64_t rows() const { return static_cast<std::int64_t>(begins.size()) - 1; }
};

/// Best fit, longest samples first and equal ones in an order shuffled by `seed`: each sample goes
/// into the row whose free places are the fewest that hold it, else into a new row. No sample is
/// split. `lengths` are in [1, sequence]. Johnson 1973, "Near-optimal bin packing algorithms".
[[nodiscard]] Packing pack(std::span<const std::int32_t> lengths, int sequence, std::int64_t seed);

/// One sample in each row.
[[nodiscard]] Packing unpacked(std::size_t size);

}  // namespace dstrain::text
