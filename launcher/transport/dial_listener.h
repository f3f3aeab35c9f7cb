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
struct DialledAgent {
  Introduction introduction;
  UniqueFd socket;
};
/// Welcomes the agent; the protocol starts.
[[nodiscard]] Channel welcome(DialledAgent agent);

/// Listens for agents that dial the controller: on a port that the system chose, on every
/// interface, since only the agents know which one they can reach. Closes a connection that does
/// not prove the secret in time, and keeps at most kMaxPending of them.
class DialListener {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr std::chrono::seconds kProofLimit{10};
  static constexpr std::size_t kMaxPending = 128;

  DialListener();

  [[nodiscard]] const DialTarget& target() const { return target_; }
  /// Draws a new secret: agents that know only the old one are refused.
  void renew();
  void add_polls(std::vector<pollfd>& fds) const;
  [[nodiscard]] std::optional<Time> deadline() const;
  /// Reads available bytes, without waiting. Returns the agents that have now proved the secret.
  [[nodiscard]] std::vector<DialledAgent> advance(Time now);
  /// Stops listening.
  void close();

 private:
  /// A connection whose other end has not yet proved who it is.
  struct Pending {
    UniqueFd socket;
    Handshake handshake;
    std::string output;
    std::string line;
    Time until;
  };
  void accept_all(Time now);
  /// False when the connection is to be closed.
  static bool advance(Pending& connection);
  static bool flush(Pending& connection);

  UniqueFd socket_;
  DialTarget target_;
  std::deque<Pending> pending_;  ///< oldest first
  std::optional<Time> pause_;    ///< out of descriptors until then
};

}  // namespace dstrain::launcher
