#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/program/program.h"

namespace dstrain {

/// The channel of norm and of what all ranks agree on; always there.
inline constexpr CommChannel kWorldChannel = {CommAxis::world, Lane::compute};

/// Of the channels that the training program uses, and of all data ranks on the compute lane.
class Communicators {
 public:
  using ByChannel = std::map<CommChannel, std::unique_ptr<CountingCommunicator>>;

  Communicators() = default;
  /// In the order of opening, which is the same on all ranks of a group: NCCL waits there until the
  /// peers close, too.
  ~Communicators() {
    for (const CommChannel& channel : opened_) by_channel_.erase(channel);
  }
  Communicators(Communicators&&) = default;
  Communicators& operator=(Communicators&&) = delete;

  void add(const CommChannel& channel, std::unique_ptr<CountingCommunicator> communicator) {
    by_channel_[channel] = std::move(communicator);
    opened_.push_back(channel);
  }
  [[nodiscard]] CountingCommunicator& at(const CommChannel& channel) const {
    return *by_channel_.at(channel);
  }
  [[nodiscard]] ByChannel::const_iterator begin() const { return by_channel_.begin(); }
  [[nodiscard]] ByChannel::const_iterator end() const { return by_channel_.end(); }

 private:
  ByChannel by_channel_;
  std::vector<CommChannel> opened_;
};

}  // namespace dstrain
