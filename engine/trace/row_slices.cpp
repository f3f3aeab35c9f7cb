#include "engine/trace/row_slices.h"

#include <algorithm>
#include <iterator>

namespace dstrain::trace {
namespace {

constexpr std::size_t kKept = 20'000;
constexpr std::size_t kBlock = 256;

constexpr auto first_time = [](const auto& block) { return block.front().time; };

}  // namespace

bool RowSlices::take(std::int64_t start, std::int64_t end, bool work) {
  if (end <= start) return true;
  if (crosses_other(start, end)) return false;
  if (!work) {
    if (crosses_work(start, end)) return false;
    other_.insert({start, {start, end}});
    other_.insert({end, {start, end}});
    return true;
  }
  const auto after = work_.lower_bound(start);
  if (after != work_.end() && after->first < end) return false;
  if (after != work_.begin() && std::prev(after)->second > start) return false;
  work_.emplace_hint(after, start, end);
  if (work_.size() > kKept) work_.erase(work_.begin());
  return true;
}

void RowSlices::Ends::insert(const End& end) {
  ++size_;
  if (blocks_.empty()) {
    blocks_.push_back({end});
    return;
  }
  auto block = std::ranges::upper_bound(blocks_, end.time, {}, first_time);
  if (block != blocks_.begin()) --block;
  block->insert(std::ranges::upper_bound(*block, end.time, {}, &End::time), end);
  if (block->size() > kBlock) {
    const auto middle = block->begin() + kBlock / 2;
    std::vector<End> upper(middle, block->end());
    block->erase(middle, block->end());
    blocks_.insert(std::next(block), std::move(upper));
  }
  if (size_ > 2 * kKept) {
    size_ -= blocks_.front().size();
    blocks_.erase(blocks_.begin());
  }
}

template <class Crosses>
bool RowSlices::Ends::any_between(std::int64_t from, std::int64_t to,
                                  const Crosses& crosses) const {
  auto block = std::ranges::upper_bound(blocks_, from, {}, first_time);
  if (block != blocks_.begin()) --block;
  for (; block != blocks_.end() && block->front().time < to; ++block) {
    auto end = std::ranges::upper_bound(*block, from, {}, &End::time);
    for (; end != block->end() && end->time < to; ++end)
      if (crosses(*end)) return true;
  }
  return false;
}

/// One that crosses begins or ends inside.
bool RowSlices::crosses_other(std::int64_t start, std::int64_t end) const {
  return other_.any_between(start, end, [&](const End& other) {
    return other.slice.begin < start || other.slice.end > end;
  });
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
