#pragma once

#include <algorithm>
#include <cstdint>

namespace dstrain {

// What each rank and host of a large job writes down of itself is a share: thousands that all write
// everything would fill a shared file system with a hundred gigabytes a day.

/// Whether a rank writes its line of a timed step, the `timed`th that it sees: each of 256 ranks at
/// most, then 16 of all in turn, and rank 0 always.
[[nodiscard]] constexpr bool writes_line(int rank, int ranks, std::int64_t timed) {
  constexpr int kFewRanks = 256;
  constexpr int kAtOnce = 16;
  if (rank == 0 || ranks <= kFewRanks) return true;
  const std::int64_t period = ranks / kAtOnce;
  return timed % period == rank % period;
}

/// Whether a rank records a trace where trace.ranks names none: each of 64 ranks at most, then the
/// first rank of every 16th host, and the first of each stage of a pipeline.
[[nodiscard]] constexpr bool records_trace(int rank, int ranks, int ranks_of_host,
                                           bool first_of_stage) {
  constexpr int kFewRanks = 64;
  constexpr int kHosts = 16;
  return ranks <= kFewRanks || first_of_stage || rank % (kHosts * ranks_of_host) == 0;
}

/// Seconds between two looks at a host: `interval_s` at the first, and so long at the others that
/// all of them together write as two would.
[[nodiscard]] constexpr double look_interval(double interval_s, bool first_host, int hosts) {
  return first_host ? interval_s : interval_s * std::max(1.0, hosts / 2.0);
}

}  // namespace dstrain
