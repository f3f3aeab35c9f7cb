#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "engine/trace/intervals.h"

namespace dstrain::trace {

/// What is drawn on one row of a viewer. Slices on a row may be inside each other, but viewers
/// leave out one that crosses another; work of a device is never inside other work.
class RowSlices {
 public:
  /// Takes the slice, in any order; false where one that was taken stands in the way. Profilers
  /// write nearly by time, so the earliest slices are forgotten.
  bool take(std::int64_t start, std::int64_t end, bool work);

 private:
  [[nodiscard]] bool crosses_other(std::int64_t start, std::int64_t end) const;
  [[nodiscard]] bool crosses_work(std::int64_t start, std::int64_t end) const;

  std::map<std::int64_t, std::int64_t> work_;    ///< ends by starts; none overlaps another
  std::multimap<std::int64_t, Interval> other_;  ///< each slice at both of its times
};

}  // namespace dstrain::trace
