#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <queue>
#include <utility>
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
  /// Neighbours in time, and the bounds of their slices.
  struct Block {
    std::vector<End> ends;  ///< by time; not empty
    std::int64_t first_begin = 0;
    std::int64_t last_end = 0;

    explicit Block(std::vector<End> ends);
    void insert(const End& end);
  };
  /// By time, in blocks: an insertion moves one block at most.
  class Ends {
   public:
    void insert(const End& end);
    /// Whether a slice with an end inside of `time`, its bounds excluded, is not inside of it.
    [[nodiscard]] bool any_crosses(const Interval& time) const;

   private:
    std::vector<Block> blocks_;
    std::size_t size_ = 0;
  };
  [[nodiscard]] bool crosses_work(std::int64_t start, std::int64_t end) const;

  std::map<std::int64_t, std::int64_t> work_;  ///< ends by starts; none overlaps another
  Ends other_;
};

/// The rows of one thread or stream, for slices in any order. n slices take n log n, however many
/// cross.
class StreamRows {
 public:
  /// The row for a slice, from 0: the first that takes it. Beyond a few rows one takes only slices
  /// after each other.
  std::size_t take(std::int64_t start, std::int64_t end, bool work);

 private:
  std::vector<RowSlices> rows_;
  std::multimap<std::int64_t, std::size_t> plain_;  ///< further rows, by the end of their last
};

/// The rows of one thread or stream, for slices by start, of two with one start the longer first.
class SortedRows {
 public:
  /// The first row whose open slices are all around the slice, the innermost being no work if it is
  /// work itself. A moment (`start` == `end`) stays open no time.
  std::size_t take(std::int64_t start, std::int64_t end, bool work);
  [[nodiscard]] std::size_t size() const { return open_.size(); }

 private:
  struct Open {
    std::int64_t end = 0;
    bool work = false;
  };
  /// The largest of a value of each row, so that the first row with enough is found from the top.
  class FirstFit {
   public:
    void set(std::size_t row, std::int64_t value);
    /// The first row whose value is at least this; the number of values where there is none.
    [[nodiscard]] std::size_t first(std::int64_t min) const;

   private:
    std::vector<std::int64_t> tree_;  ///< a heap: node i above 2i and 2i + 1; leaves last
    std::size_t leaves_ = 0;
  };
  void update(std::size_t row);

  std::vector<std::vector<Open>> open_;
  /// Ends of open slices and their rows, the earliest on top.
  std::priority_queue<std::pair<std::int64_t, std::size_t>,
                      std::vector<std::pair<std::int64_t, std::size_t>>, std::greater<>>
      ends_;
  FirstFit for_any_, for_work_;  ///< until when a row takes what begins now
};

}  // namespace dstrain::trace
