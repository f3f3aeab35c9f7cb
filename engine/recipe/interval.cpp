#include "engine/recipe/interval.h"

#include <limits>

#include "engine/recipe/text.h"

namespace dstrain {

std::int64_t Interval::in_steps(std::int64_t steps_per_epoch) const {
  switch (kind) {
    case Kind::never:
      return 0;
    case Kind::epoch:
      return steps_per_epoch;
    case Kind::steps:
      return steps;
  }
  return 0;
}

std::optional<Interval> interval_from(const std::string& text) {
  if (text == "never") return Interval{.kind = Interval::Kind::never};
  if (text == "epoch") return Interval{.kind = Interval::Kind::epoch};
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
  }
  return {};
}

}  // namespace dstrain
