#pragma once

#include <poll.h>

#include <chrono>
#include <deque>
#include <optional>
#include <set>
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
/// not prove the secret in time. Holds as many as agents are awaited, twice, and kRoomForStrangers:
/// srun gives all agents their line at once, and they dial within a moment.
class DialListener {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr std::chrono::seconds kProofLimit{10};
  /// An agent speaks at once; who has said nothing for so long makes room for another one.
  static constexpr std::chrono::milliseconds kSilentLimit{100};
  static constexpr std::size_t kRoomForStrangers = 128;

  /// `awaited`: agents that may dial at the same moment.
  explicit DialListener(std::size_t awaited = 0);
  /// On that port and with that secret, which the agents know already.
  DialListener(int port, const JobSecret& secret, std::size_t awaited);
  /// For a number of agents that is known later.
  void await(std::size_t agents) { room_ = 2 * agents + kRoomForStrangers; }

  [[nodiscard]] const DialTarget& target() const { return target_; }
  /// Draws a new secret: agents that know only the old one are refused.
  void renew();
  void add_polls(std::vector<pollfd>& fds) const;
  [[nodiscard]] std::optional<Time> deadline() const;
  /// Reads available bytes, without waiting. Returns the agents that have now proved the secret.
  [[nodiscard]] std::vector<DialledAgent> advance(Time now);
  /// Who has begun the proof and has another secret: the first few addresses.
  [[nodiscard]] const std::set<std::string>& refused() const { return refused_; }
  /// Stops listening.
  void close();

 private:
  /// A connection whose other end has not yet proved who it is.
  struct Pending {
    UniqueFd socket;
    Handshake handshake;
    std::string output;
    std::string line;
    Time since;
    bool has_spoken = false;
    std::string address = {};  ///< of the other end
  };
  /// Reads what has come; those that have now proved the secret join `agents`.
  void read_all(Time now, std::vector<DialledAgent>& agents);
  void accept_all(Time now);
  /// Closes the oldest connection that has said nothing for kSilentLimit; false without one.
  bool drop_silent(Time now);
  void listen(int port);
  /// False when the connection is to be closed.
  static bool advance(Pending& connection);
  static bool flush(Pending& connection);

  UniqueFd socket_;
  DialTarget target_;
  std::deque<Pending> pending_;  ///< oldest first
  std::optional<Time> pause_;    ///< no room, or out of descriptors, until then
  std::size_t room_ = kRoomForStrangers;
  std::set<std::string> refused_;
};

}  // namespace dstrain::launcher
