#pragma once

#include <cstdint>

namespace dstrain::launcher {

/// How far the clock of another host is from ours, by the quickest of its answers to a heartbeat.
class ClockOffset {
 public:
  /// A heartbeat sent at `sent_ns` came back at `received_ns`, both of our clock, when its clock
  /// said `theirs_ns`.
  void add(std::int64_t sent_ns, std::int64_t theirs_ns, std::int64_t received_ns);
  /// One of its times by our clock; 0, which stands for none, stays 0.
  [[nodiscard]] std::int64_t to_ours(std::int64_t theirs_ns) const;

 private:
  std::int64_t best_round_trip_ns_ = INT64_MAX;
  std::int64_t offset_ns_ = 0;  ///< its clock minus ours
};

}  // namespace dstrain::launcher
