#include "launcher/hang/straggler.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/units.h"

namespace dstrain::launcher {
namespace {

constexpr std::int64_t kSteps = 20;
constexpr std::int64_t kStepsBetweenNotes = 100;
constexpr double kRatio = 1.5;
/// Below these a report is of no use: the excess of the slow rank a step, and its
/// share of a step.
constexpr double kMinExcess_s = 0.002;
constexpr double kMinShare = 0.05;

struct Pace {
  double busy_s = 0;  ///< of a step
  double step_s = 0;
};

Pace between(const RankPace& first, const RankPace& last) {
  const auto steps = static_cast<double>(last.steps - first.steps) * 1e9;
  const auto step_ns = static_cast<double>(last.steps_ns - first.steps_ns);
  const auto waited_ns = static_cast<double>(last.waited_ns - first.waited_ns);
  return {.busy_s = std::max(0.0, step_ns - waited_ns) / steps, .step_s = step_ns / steps};
}

/// A rank and its own work in a step.
struct Busy {
  double busy_s = 0;
  int rank = 0;
};

/// Median of `sorted` without its element `left_out`; two elements at least.
double median_without(const std::vector<Busy>& sorted, std::size_t left_out) {
  const auto other = [&](std::size_t i) { return sorted[i < left_out ? i : i + 1].busy_s; };
  const std::size_t count = sorted.size() - 1;
  return count % 2 == 1 ? other(count / 2) : (other(count / 2 - 1) + other(count / 2)) / 2;
}

}  // namespace

bool StragglerWatch::is_complete(const Rank& rank) {
  return rank.last.steps - rank.first.steps >= kSteps;
}

std::vector<std::string> StragglerWatch::add(const PaceMessage& message, const std::string& host) {
  for (const RankPace& pace : message.ranks) {
    const auto [found, is_new] = ranks_.try_emplace(pace.rank);
    Rank& rank = found->second;
    num_complete_ -= is_complete(rank) ? 1 : 0;
    // Fewer steps than before: the job was started again.
    if (is_new || pace.steps < rank.last.steps) rank = {.host = host, .first = pace, .last = pace};
    rank.host = host;
    rank.last = pace;
    num_complete_ += is_complete(rank) ? 1 : 0;
  }
  return ranks_.size() < 2 || num_complete_ < ranks_.size() ? std::vector<std::string>()
                                                            : compare();
}

std::vector<std::string> StragglerWatch::compare() {
  std::map<int, std::vector<Busy>> stages;
  for (const auto& [number, rank] : ranks_)
    stages[rank.last.stage].push_back({between(rank.first, rank.last).busy_s, number});
  std::map<int, std::string> notes;  // by rank
  for (auto& [stage, paces] : stages) {
    std::ranges::sort(paces, {}, &Busy::busy_s);
    for (std::size_t i = 0; i < paces.size() && paces.size() > 1; ++i) {
      const auto [busy_s, number] = paces[i];
      Rank& rank = ranks_.at(number);
      const double usual = median_without(paces, i);
      const double excess = busy_s - usual;
      const std::int64_t steps = rank.last.steps - rank.first.steps;
      const bool again = rank.named_at >= 0 && rank.last.steps - rank.named_at < kStepsBetweenNotes;
      if (busy_s <= kRatio * usual || excess < kMinExcess_s ||
          excess < kMinShare * between(rank.first, rank.last).step_s || again) {
        continue;
      }
      rank.named_at = rank.last.steps;
      notes[number] = fmt::format(
          "rank {} on {} is slow: {:.1f} x the median of the others ({} against {} of "
          "own work a step, "
          "over {} steps); the others wait for it",
          number, rank.host, busy_s / std::max(usual, 1e-6), format_duration(busy_s),
          format_duration(usual), steps);
    }
  }
  for (auto& [number, rank] : ranks_) rank.first = rank.last;
  num_complete_ = 0;
  std::vector<std::string> lines;
  for (auto& [number, note] : notes) lines.push_back(std::move(note));
  return lines;
}

}  // namespace dstrain::launcher
