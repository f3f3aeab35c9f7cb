#include "engine/trace/row_slices.h"

#include <algorithm>
#include <iterator>
#include <limits>

namespace dstrain::trace {
namespace {

constexpr std::size_t kKept = 20'000;
constexpr std::size_t kBlock = 256;
constexpr std::size_t kNestedRows = 16;  ///< of StreamRows, in which slices may be inside others
constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kForever = std::numeric_limits<std::int64_t>::max();

constexpr auto first_time = [](const auto& block) { return block.ends.front().time; };

}  // namespace

bool RowSlices::take(std::int64_t start, std::int64_t end, bool work) {
  if (end <= start) return true;
  if (other_.any_crosses({start, end})) return false;
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

RowSlices::Block::Block(std::vector<End> list) : ends(std::move(list)) {
  first_begin = ends.front().slice.begin;
  last_end = ends.front().slice.end;
  for (const End& end : ends) {
    first_begin = std::min(first_begin, end.slice.begin);
    last_end = std::max(last_end, end.slice.end);
  }
}

void RowSlices::Block::insert(const End& end) {
  ends.insert(std::ranges::upper_bound(ends, end.time, {}, &End::time), end);
  first_begin = std::min(first_begin, end.slice.begin);
  last_end = std::max(last_end, end.slice.end);
}

void RowSlices::Ends::insert(const End& end) {
  ++size_;
  if (blocks_.empty()) {
    blocks_.emplace_back(std::vector<End>{end});
    return;
  }
  auto block = std::ranges::upper_bound(blocks_, end.time, {}, first_time);
  if (block != blocks_.begin()) --block;
  block->insert(end);
  if (block->ends.size() > kBlock) {
    const auto middle = block->ends.begin() + kBlock / 2;
    Block upper(std::vector<End>(middle, block->ends.end()));
    *block = Block(std::vector<End>(block->ends.begin(), middle));
    blocks_.insert(std::next(block), std::move(upper));
  }
  if (size_ > 2 * kKept) {
    size_ -= blocks_.front().ends.size();
    blocks_.erase(blocks_.begin());
  }
}

/// A slice that crosses begins or ends inside, and reaches out. Blocks inside tell it by their
/// bounds; at the two edges each end is looked at.
bool RowSlices::Ends::any_crosses(const Interval& time) const {
  auto block = std::ranges::upper_bound(blocks_, time.begin, {}, first_time);
  if (block != blocks_.begin()) --block;
  for (; block != blocks_.end() && block->ends.front().time < time.end; ++block) {
    if (block->first_begin >= time.begin && block->last_end <= time.end) continue;
    const bool inside = block->ends.front().time > time.begin && block->ends.back().time < time.end;
    if (inside) return true;
    auto end = std::ranges::upper_bound(block->ends, time.begin, {}, &End::time);
    for (; end != block->ends.end() && end->time < time.end; ++end)
      if (end->slice.begin < time.begin || end->slice.end > time.end) return true;
  }
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

std::size_t StreamRows::take(std::int64_t start, std::int64_t end, bool work) {
  for (std::size_t row = 0; row < rows_.size(); ++row)
    if (rows_[row].take(start, end, work)) return row;
  if (rows_.size() < kNestedRows) {
    (void)rows_.emplace_back().take(start, end, work);
    return rows_.size() - 1;
  }
  const auto after = plain_.upper_bound(start);  // of those that have ended, the last
  std::size_t row = kNestedRows + plain_.size();
  if (after != plain_.begin()) {
    row = std::prev(after)->second;
    plain_.erase(std::prev(after));
  }
  plain_.emplace(end, row);
  return row;
}

void SortedRows::FirstFit::set(std::size_t row, std::int64_t value) {
  if (row >= leaves_) {
    FirstFit larger;
    larger.leaves_ = std::max<std::size_t>(8, 2 * leaves_);
    larger.tree_.assign(2 * larger.leaves_, kNever);
    for (std::size_t i = 0; i < leaves_; ++i) larger.set(i, tree_[leaves_ + i]);
    *this = std::move(larger);
  }
  std::size_t node = leaves_ + row;
  tree_[node] = value;
  for (node /= 2; node > 0; node /= 2) tree_[node] = std::max(tree_[2 * node], tree_[2 * node + 1]);
}

std::size_t SortedRows::FirstFit::first(std::int64_t min) const {
  if (leaves_ == 0 || tree_[1] < min) return leaves_;
  std::size_t node = 1;
  while (node < leaves_) node = tree_[2 * node] >= min ? 2 * node : 2 * node + 1;
  return node - leaves_;
}

void SortedRows::update(std::size_t row) {
  const std::vector<Open>& open = open_[row];
  for_any_.set(row, open.empty() ? kForever : open.back().end);
  for_work_.set(row, open.empty() ? kForever : open.back().work ? kNever : open.back().end);
}

std::size_t SortedRows::take(std::int64_t start, std::int64_t end, bool work) {
  while (!ends_.empty() && ends_.top().first <= start) {
    const std::size_t row = ends_.top().second;
    ends_.pop();
    while (!open_[row].empty() && open_[row].back().end <= start) open_[row].pop_back();
    update(row);
  }
  std::size_t row = (work ? for_work_ : for_any_).first(end);
  if (row >= open_.size()) {
    row = open_.size();
    open_.emplace_back();
  }
  if (end > start) {
    open_[row].push_back({end, work});
    ends_.emplace(end, row);
  }
  update(row);
  return row;
}

}  // namespace dstrain::trace
