#pragma once

#include <cstdint>
#include <vector>

namespace dstrain::trace {

/// Nanoseconds from `begin` up to, not with, `end`.
struct Interval {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool operator==(const Interval&) const = default;
};

/// Sorted, disjoint and not touching; empty ones are left out.
using IntervalSet = std::vector<Interval>;

[[nodiscard]] IntervalSet united(std::vector<Interval> intervals);
[[nodiscard]] IntervalSet intersected(const IntervalSet& a, const IntervalSet& b);
/// What of `a` is not in `b`.
[[nodiscard]] IntervalSet subtracted(const IntervalSet& a, const IntervalSet& b);
/// Nanoseconds.
[[nodiscard]] std::int64_t length(const IntervalSet& set);

}  // namespace dstrain::trace
