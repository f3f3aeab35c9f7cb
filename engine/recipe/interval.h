#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace dstrain {

/// How often something is done, and after the last step of a run unless never.
struct Interval {
  enum class Kind {
    never,
    epoch,      ///< after each epoch
    steps,      ///< after every `steps` optimizer steps
    time,       ///< after every `seconds`
    automatic,  ///< by the clock, as often as pays off
  };
  Kind kind = Kind::epoch;
  std::int64_t steps = 0;    ///< from 1; of Kind::steps
  std::int64_t seconds = 0;  ///< from 1; of Kind::time

  [[nodiscard]] bool is_never() const { return kind == Kind::never; }
  [[nodiscard]] bool is_by_clock() const { return kind == Kind::time || kind == Kind::automatic; }
  /// Optimizer steps from one time to the next; 0: never, or by the clock.
  [[nodiscard]] std::int64_t in_steps(std::int64_t steps_per_epoch) const;

  bool operator==(const Interval&) const = default;
};

/// "never", "epoch" or a whole number from 1 to 2^31 - 1; with `clock` also "auto" and a time of
/// seconds, minutes or hours up to 30 days ("90s", "10m", "2h"). nullopt for anything else.
[[nodiscard]] std::optional<Interval> interval_from(const std::string& text, bool clock);
/// What interval_from() reads, for people.
[[nodiscard]] std::string interval_words(bool clock);
/// The reverse.
[[nodiscard]] std::string to_text(const Interval& interval);

}  // namespace dstrain
