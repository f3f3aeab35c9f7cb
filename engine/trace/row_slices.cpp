#include "engine/trace/row_slices.h"

#include <iterator>

namespace dstrain::trace {
namespace {

constexpr std::size_t kKept = 20'000;

}  // namespace

bool RowSlices::take(std::int64_t start, std::int64_t end, bool work) {
  if (end <= start) return true;
  if (crosses_other(start, end)) return false;
  if (!work) {
    if (crosses_work(start, end)) return false;
    other_.emplace(start, Interval{start, end});
    other_.emplace(end, Interval{start, end});
    while (other_.size() > 2 * kKept) other_.erase(other_.begin());
    return true;
  }
  const auto after = work_.lower_bound(start);
  if (after != work_.end() && after->first < end) return false;
  if (after != work_.begin() && std::prev(after)->second > start) return false;
  work_.emplace_hint(after, start, end);
  if (work_.size() > kKept) work_.erase(work_.begin());
  return true;
}

/// One that crosses begins or ends inside.
bool RowSlices::crosses_other(std::int64_t start, std::int64_t end) const {
  for (auto i = other_.upper_bound(start); i != other_.end() && i->first < end; ++i)
    if (i->second.begin < start || i->second.end > end) return true;
  return false;
}

bool RowSlices::crosses_work(std::int64_t start, std::int64_t end) const {
  const auto after_start = work_.lower_bound(start);
  if (after_start != work_.begin()) {
    const std::int64_t other_end = std::prev(after_start)->second;
    if (other_end > start && other_end < end) return true;
  }
  const auto after_end = work_.lower_bound(end);
  if (after_end == work_.begin()) return false;
  const auto& [other_start, other_end] = *std::prev(after_end);
  return other_start > start && other_end > end;
}

}  // namespace dstrain::trace
