#include "engine/trace/intervals.h"

#include <algorithm>

namespace dstrain::trace {

IntervalSet united(std::vector<Interval> intervals) {
  std::erase_if(intervals, [](const Interval& i) { return i.end <= i.begin; });
  std::sort(intervals.begin(), intervals.end(),
            [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  std::size_t kept = 0;
  for (const Interval& next : intervals) {
    if (kept > 0 && next.begin <= intervals[kept - 1].end)
      intervals[kept - 1].end = std::max(intervals[kept - 1].end, next.end);
    else
      intervals[kept++] = next;
  }
  intervals.resize(kept);
  return intervals;
}

IntervalSet intersected(const IntervalSet& a, const IntervalSet& b) {
  IntervalSet both;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const Interval common = {std::max(a[i].begin, b[j].begin), std::min(a[i].end, b[j].end)};
    if (common.begin < common.end) both.push_back(common);
    if (a[i].end < b[j].end)
      ++i;
    else
      ++j;
  }
  return both;
}

IntervalSet subtracted(const IntervalSet& a, const IntervalSet& b) {
  IntervalSet rest;
  std::size_t j = 0;
  for (Interval left : a) {
    while (j < b.size() && b[j].end <= left.begin) ++j;
    for (std::size_t k = j; k < b.size() && b[k].begin < left.end; ++k) {
      if (left.begin < b[k].begin) rest.push_back({left.begin, b[k].begin});
      left.begin = std::max(left.begin, b[k].end);
    }
    if (left.begin < left.end) rest.push_back(left);
  }
  return rest;
}

std::int64_t length(const IntervalSet& set) {
  std::int64_t sum = 0;
  for (const Interval& i : set) sum += i.end - i.begin;
  return sum;
}

}  // namespace dstrain::trace
