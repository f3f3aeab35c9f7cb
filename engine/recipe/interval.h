#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace dstrain {

/// How often something is done, and after the last step of a run unless never.
struct Interval {
  enum class Kind {
    never,
    epoch,  ///< after each epoch
    steps,  ///< after every `steps` optimizer steps
  };
  Kind kind = Kind::epoch;
  std::int64_t steps = 0;  ///< from 1; of Kind::steps

  [[nodiscard]] bool is_never() const { return kind == Kind::never; }
  /// Optimizer steps from one time to the next; 0: never.
  [[nodiscard]] std::int64_t in_steps(std::int64_t steps_per_epoch) const;

  bool operator==(const Interval&) const = default;
};

/// "never", "epoch" or a whole number from 1 to 2^31 - 1; nullopt for anything else.
[[nodiscard]] std::optional<Interval> interval_from(const std::string& text);
/// The reverse.
[[nodiscard]] std::string to_text(const Interval& interval);

}  // namespace dstrain
