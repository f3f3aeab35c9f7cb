#include "launcher/base/line_folder.h"

#include <fmt/format.h>

#include <algorithm>

#include "launcher/base/words.h"

namespace dstrain::launcher {

void LineFolder::add(int rank, std::string_view lines, Time now) {
  if (first_rank_ < 0) first_rank_ = rank;
  several_ = several_ || rank != first_rank_;
  // A line joins only entries after the rank's last one, so that its lines keep their order.
  std::size_t from = 0;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (std::find(entries_[i].ranks.begin(), entries_[i].ranks.end(), rank) !=
        entries_[i].ranks.end())
      from = i + 1;
  }
  while (!lines.empty()) {
    const auto newline = lines.find('\n');
    const std::string_view line = lines.substr(0, newline);
    lines.remove_prefix(newline == std::string_view::npos ? lines.size() : newline + 1);
    const auto same =
        std::find_if(entries_.begin() + static_cast<std::ptrdiff_t>(from), entries_.end(),
                     [line](const Entry& entry) { return entry.text == line; });
    if (same != entries_.end()) {
      same->ranks.push_back(rank);
      from = static_cast<std::size_t>(same - entries_.begin()) + 1;
    } else {
      entries_.push_back({std::string(line), {rank}, now});
      from = entries_.size();
    }
  }
}

std::vector<LineFolder::Line> LineFolder::take(Time now, bool all) {
  std::size_t due = 0;
  while (due < entries_.size() && (all || !several_ || entries_[due].time + kWait <= now)) ++due;
  std::vector<Line> lines;
  for (std::size_t i = 0; i < due; ++i) {
    const Entry& entry = entries_[i];
    lines.push_back(
        {fmt::format("[rank{} {}] ", entry.ranks.size() == 1 ? "" : "s", fold_ranks(entry.ranks)),
         entry.text});
  }
  entries_.erase(entries_.begin(), entries_.begin() + static_cast<std::ptrdiff_t>(due));
  return lines;
}

std::optional<LineFolder::Time> LineFolder::deadline() const {
  if (entries_.empty()) return std::nullopt;
  return entries_.front().time + kWait;
}

}  // namespace dstrain::launcher
