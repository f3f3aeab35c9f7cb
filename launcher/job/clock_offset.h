#pragma once

#include <cstdint>
#include <optional>

namespace dstrain::launcher {

/// What one answer tells of another host's clock.
struct ClockReading {
  std::int64_t t_ns = 0;       ///< of our clock
  std::int64_t offset_ns = 0;  ///< its clock minus ours
  std::int64_t bound_ns = 0;   ///< the offset is right within this: half the round trip
};

/// How far the clock of another host is from ours, by the quickest of its answers to a heartbeat in
/// each window of 10 s: an answer of an hour ago says nothing of a clock that drifts.
class ClockOffset {
 public:
  static constexpr std::int64_t kWindowNs = 10'000'000'000;

  /// A heartbeat sent at `sent_ns` came back at `received_ns`, both of our clock, when its clock
  /// said `theirs_ns`. Returns the quickest answer of the window that this one ends, if it does.
  std::optional<ClockReading> add(std::int64_t sent_ns, std::int64_t theirs_ns,
                                  std::int64_t received_ns);
  /// The quickest of the window that has not ended, once.
  std::optional<ClockReading> take_rest();
  /// One of its times by our clock; 0, which stands for none, stays 0.
  [[nodiscard]] std::int64_t to_ours(std::int64_t theirs_ns) const;

 private:
  std::optional<ClockReading> last_;  ///< of the window before
  std::optional<ClockReading> best_;  ///< of this window
  std::int64_t window_begin_ns_ = 0;
};

}  // namespace dstrain::launcher
