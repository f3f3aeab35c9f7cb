#pragma once

#include <poll.h>
#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/base/rank_record.h"
#include "launcher/hang/stacks.h"
#include "launcher/hang/stall_watch.h"
#include "launcher/protocol/channel.h"
#include "launcher/protocol/protocol.h"

namespace dstrain::launcher {

/// A rank of this node as its agent has it.
struct WatchedRank {
  int rank = 0;
  pid_t pid = 0;
  const RankRecord* record = nullptr;
  bool ended = false;
};

/// The agent's part in finding hangs and slow ranks: sends `stall` for a rank that makes no
/// progress, answers `states` with the stacks of all ranks, and sends `pace` now and then. Never
/// waits.
class HangWatch {
 public:
  using Clock = std::chrono::steady_clock;

  HangWatch() = default;
  /// `host`, `run_directory` and `limit` as in PrepareJob.
  HangWatch(std::string host, std::filesystem::path run_directory, HangLimit limit)
      : host_(std::move(host)), stalls_(limit), run_directory_(std::move(run_directory)) {}

  /// The controller asked for all states; their frames follow from advance(). A second time while
  /// the stacks are being taken asks for nothing more.
  void ask(Clock::time_point now, std::span<const WatchedRank> ranks);
  /// Sends what there is to send.
  void advance(Clock::time_point now, std::span<const WatchedRank> ranks, Channel& channel);
  /// Descriptors to wait for, and until when at most.
  void add_polls(std::vector<pollfd>& fds) const;
  [[nodiscard]] Clock::time_point deadline() const;
  /// Ends the children that take stacks.
  void cancel() { takers_.clear(); }

 private:
  [[nodiscard]] RankState state_of(const WatchedRank& rank) const;
  void take_plan(std::span<const WatchedRank> ranks, Channel& channel);
  void send_pace(std::span<const WatchedRank> ranks, Channel& channel);

  std::string host_;
  StallWatch stalls_;
  std::filesystem::path run_directory_;
  bool planned_ = false;              ///< the plan has been read
  std::map<int, StackTaker> takers_;  ///< by rank
  bool asked_ = false;
  Clock::time_point next_look_{};
  Clock::time_point next_pace_{};
  std::int64_t paced_steps_ = 0;  ///< of all ranks together, when they were sent last
};

}  // namespace dstrain::launcher
