#include "launcher/job/clock_offset.h"

#include <utility>

namespace dstrain::launcher {

std::optional<ClockReading> ClockOffset::add(std::int64_t sent_ns, std::int64_t theirs_ns,
                                             std::int64_t received_ns) {
  const std::int64_t round_trip = received_ns - sent_ns;
  if (round_trip < 0) return std::nullopt;  // our clock was set
  const std::int64_t middle = sent_ns + round_trip / 2;
  const ClockReading reading{
      .t_ns = middle, .offset_ns = theirs_ns - middle, .bound_ns = (round_trip + 1) / 2};
  std::optional<ClockReading> ended;
  if (received_ns - window_begin_ns_ >= kWindowNs) {
    ended = take_rest();
    window_begin_ns_ = received_ns;
  }
  if (!best_ || reading.bound_ns < best_->bound_ns) best_ = reading;
  return ended;
}

std::optional<ClockReading> ClockOffset::take_rest() {
  if (best_) last_ = best_;
  return std::exchange(best_, std::nullopt);
}

std::int64_t ClockOffset::to_ours(std::int64_t theirs_ns) const {
  if (theirs_ns <= 0) return theirs_ns;
  const bool use_last = last_ && (!best_ || last_->bound_ns < best_->bound_ns);
  const std::optional<ClockReading>& reading = use_last ? last_ : best_;
  return reading ? theirs_ns - reading->offset_ns : theirs_ns;
}

}  // namespace dstrain::launcher
