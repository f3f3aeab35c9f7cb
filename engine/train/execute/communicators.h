#pragma once

#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/comm/communicator.h"
#include "engine/program/program.h"

namespace dstrain {

/// The channel of norm and of what all ranks agree on; always there.
inline constexpr CommChannel kWorldChannel = {CommAxis::world, Lane::compute};

/// Communicators of the channels that the training program uses, and of all data ranks on the
/// compute lane, in the order of opening, which is the same on all ranks of a group.
class Communicators {
 public:
  using Opened = std::pair<CommChannel, std::unique_ptr<CountingCommunicator>>;

  Communicators() = default;
  /// Closes them in the order of opening: NCCL waits there until the peers close, too. After a
  /// failure waits end first, of all together, as a lane may wait for another one.
  ~Communicators() {
    if (std::uncaught_exceptions() > 0) end_waits();
    for (Opened& opened : opened_) opened.second.reset();
  }
  Communicators(Communicators&&) = default;
  Communicators& operator=(Communicators&&) = delete;

  void add(const CommChannel& channel, std::unique_ptr<CountingCommunicator> communicator) {
    opened_.emplace_back(channel, std::move(communicator));
  }
  /// Null: the channel is not opened.
  [[nodiscard]] CountingCommunicator* find(const CommChannel& channel) const {
    const auto found = std::ranges::find(opened_, channel, &Opened::first);
    return found == opened_.end() ? nullptr : found->second.get();
  }
  [[nodiscard]] CountingCommunicator& at(const CommChannel& channel) const {
    CountingCommunicator* found = find(channel);
    DSTRAIN_CHECK(found != nullptr, "a channel is opened before it is used");
    return *found;
  }
  [[nodiscard]] auto begin() const { return opened_.begin(); }
  [[nodiscard]] auto end() const { return opened_.end(); }

 private:
  void end_waits() {
    constexpr int kTurns = 2000;
    for (int turn = 0; turn < kTurns; ++turn) {
      bool any = false;
      for (Opened& opened : opened_) any = opened.second->end_waits() || any;
      if (!any) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  std::vector<Opened> opened_;
};

/// What `after` has more than `before`, counts of one communicator.
[[nodiscard]] inline std::vector<CallCount> difference(std::vector<CallCount> after,
                                                       const std::vector<CallCount>& before) {
  for (CallCount& count : after) {
    const auto earlier = std::ranges::find(before, count.operation, &CallCount::operation);
    if (earlier == before.end()) continue;
    count.calls -= earlier->calls;
    count.bytes -= earlier->bytes;
  }
  return after;
}

}  // namespace dstrain
