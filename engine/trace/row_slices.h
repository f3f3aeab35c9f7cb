#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

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
  /// One of the two times of a slice.
  struct End {
    std::int64_t time = 0;
    Interval slice;
  };
  /// By time, in blocks: an insertion moves one block at most.
  class Ends {
   public:
    void insert(const End& end);
    /// Calls `crosses` for those between two times, both excluded, until it is true.
    template <class Crosses>
    [[nodiscard]] bool any_between(std::int64_t from, std::int64_t to,
                                   const Crosses& crosses) const;

   private:
    std::vector<std::vector<End>> blocks_;  ///< none empty
    std::size_t size_ = 0;
  };
  [[nodiscard]] bool crosses_other(std::int64_t start, std::int64_t end) const;
  [[nodiscard]] bool crosses_work(std::int64_t start, std::int64_t end) const;

  std::map<std::int64_t, std::int64_t> work_;  ///< ends by starts; none overlaps another
  Ends other_;
};

}  // namespace dstrain::trace
