#include "launcher/job/clock_offset.h"

namespace dstrain::launcher {

void ClockOffset::add(std::int64_t sent_ns, std::int64_t theirs_ns, std::int64_t received_ns) {
  const std::int64_t round_trip = received_ns - sent_ns;
  if (round_trip < 0 || round_trip >= best_round_trip_ns_) return;
  best_round_trip_ns_ = round_trip;
  offset_ns_ = theirs_ns - (sent_ns + round_trip / 2);
}

std::int64_t ClockOffset::to_ours(std::int64_t theirs_ns) const {
  return theirs_ns > 0 ? theirs_ns - offset_ns_ : theirs_ns;
}

}  // namespace dstrain::launcher
