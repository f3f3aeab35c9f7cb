#pragma once

#include <poll.h>

#include <chrono>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/handshake.h"
#include "launcher/base/fd.h"
#include "launcher/protocol/channel.h"
#include "launcher/transport/dial.h"

namespace dstrain::launcher {

/// An agent that has proved the secret and waits to be welcomed.
struct Caller {
  Introduction introduction;
  UniqueFd socket;
};
/// Welcomes the caller: its protocol starts.
[[nodiscard]] Channel welcome(Caller caller);

/// The controller's ear for agents that dial: a port that the system chose, on every interface,
/// since only the agents know by which one they come. A connection that does not prove the secret
/// in time is closed, and there are never more than a fixed number of such.
class DialListener {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr std::chrono::seconds kProofLimit{10};
  static constexpr std::size_t kMostStrangers = 128;

  DialListener();

  [[nodiscard]] const DialTarget& target() const { return target_; }
  /// Draws a new secret: agents that know the old one are strangers now.
  void renew();
  void add_polls(std::vector<pollfd>& fds) const;
  [[nodiscard]] std::optional<Time> deadline() const;
  /// Takes in what has arrived, without waiting. Returns the callers that are now complete.
  [[nodiscard]] std::vector<Caller> advance(Time now);
  /// Nobody else is expected.
  void close();

 private:
  /// A connection whose other end has not yet proved who it is.
  struct Stranger {
    UniqueFd socket;
    Handshake handshake;
    std::string output;
    std::string line;
    Time until;
  };
  void accept_all(Time now);
  /// False when the connection is to be closed.
  static bool advance(Stranger& stranger);
  static bool flush(Stranger& stranger);

  UniqueFd socket_;
  DialTarget target_;
  std::deque<Stranger> strangers_;  ///< oldest first
  std::optional<Time> pause_;       ///< out of descriptors until then
};

}  // namespace dstrain::launcher
