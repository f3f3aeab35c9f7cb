#include "engine/recipe/interval.h"

#include <limits>

#include "engine/recipe/text.h"

namespace dstrain {

std::int64_t Interval::in_steps(std::int64_t steps_per_epoch) const {
  switch (kind) {
    case Kind::never:
    case Kind::time:
    case Kind::automatic:
      return 0;
    case Kind::epoch:
      return steps_per_epoch;
    case Kind::steps:
      return steps;
  }
  return 0;
}

namespace {

struct Unit {
  char letter;
  std::int64_t seconds;
};
constexpr Unit kUnits[] = {{'h', 3600}, {'m', 60}, {'s', 1}};
constexpr std::int64_t kMaxSeconds = 30 * 86'400;

/// 0 for what is no time.
std::int64_t seconds_from(const std::string& text) {
  if (text.empty()) return 0;
  for (const Unit& unit : kUnits) {
    if (text.back() != unit.letter) continue;
    const Number<long> count = read_integer(text.substr(0, text.size() - 1));
    const bool good =
        count.value && *count.value >= 1 && *count.value <= kMaxSeconds / unit.seconds;
    return good ? *count.value * unit.seconds : 0;
  }
  return 0;
}

}  // namespace

std::string interval_words(bool clock) {
  return clock ? "never, epoch, a number of steps from 1, a time (90s, 10m, 2h) or auto"
               : "never, epoch or a number of steps from 1";
}

std::optional<Interval> interval_from(const std::string& text, bool clock) {
  if (text == "never") return Interval{.kind = Interval::Kind::never};
  if (text == "epoch") return Interval{.kind = Interval::Kind::epoch};
  if (clock && text == "auto") return Interval{.kind = Interval::Kind::automatic};
  if (const std::int64_t seconds = clock ? seconds_from(text) : 0; seconds > 0)
    return Interval{.kind = Interval::Kind::time, .seconds = seconds};
  const Number<long> steps = read_integer(text);
  if (!steps.value || *steps.value < 1 || *steps.value > std::numeric_limits<int>::max()) {
    return std::nullopt;
  }
  return Interval{.kind = Interval::Kind::steps, .steps = *steps.value};
}

std::string to_text(const Interval& interval) {
  switch (interval.kind) {
    case Interval::Kind::never:
      return "never";
    case Interval::Kind::epoch:
      return "epoch";
    case Interval::Kind::steps:
      return std::to_string(interval.steps);
    case Interval::Kind::time:
      for (const Unit& unit : kUnits) {
        if (interval.seconds % unit.seconds == 0)
          return std::to_string(interval.seconds / unit.seconds) + unit.letter;
      }
      break;
    case Interval::Kind::automatic:
      return "auto";
  }
  return {};
}

}  // namespace dstrain
