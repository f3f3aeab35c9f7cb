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

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

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

}  // namespace

std::vector<std::string> StragglerWatch::add(const PaceMessage& message, const std::string& host) {
  for (const RankPace& pace : message.ranks) {
    const auto [found, is_new] = ranks_.try_emplace(pace.rank);
    Rank& rank = found->second;
    // Fewer steps than before: the job was started again.
    if (is_new || pace.steps < rank.last.steps) rank = {.host = host, .first = pace, .last = pace};
    rank.host = host;
    rank.last = pace;
  }
  return compare();
}

std::vector<std::string> StragglerWatch::compare() {
  const bool complete = std::ranges::all_of(ranks_, [](const auto& entry) {
    return entry.second.last.steps - entry.second.first.steps >= kSteps;
  });
  if (ranks_.size() < 2 || !complete) return {};
  std::map<int, Pace> paces;
  for (const auto& [number, rank] : ranks_) paces[number] = between(rank.first, rank.last);
  std::vector<std::string> notes;
  for (auto& [number, rank] : ranks_) {
    std::vector<double> others;
    for (const auto& [other, pace] : paces) {
      if (other != number && ranks_.at(other).last.stage == rank.last.stage)
        others.push_back(pace.busy_s);
    }
    if (others.empty()) {
      rank.first = rank.last;
      continue;
    }
    const double usual = median(std::move(others));
    const Pace& pace = paces.at(number);
    const double excess = pace.busy_s - usual;
    const std::int64_t steps = rank.last.steps - rank.first.steps;
    const bool again = rank.named_at >= 0 && rank.last.steps - rank.named_at < kStepsBetweenNotes;
    rank.first = rank.last;
    if (pace.busy_s <= kRatio * usual || excess < kMinExcess_s ||
        excess < kMinShare * pace.step_s || again) {
      continue;
    }
    rank.named_at = rank.last.steps;
    notes.push_back(
        fmt::format("rank {} on {} is slow: {:.1f} x the median of the others ({} against {} of "
                    "own work a step, "
                    "over {} steps); the others wait for it",
                    number, rank.host, pace.busy_s / std::max(usual, 1e-6),
                    format_duration(pace.busy_s), format_duration(usual), steps));
  }
  return notes;
}

}  // namespace dstrain::launcher
