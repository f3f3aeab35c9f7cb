#pragma once

#include <poll.h>
#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/hosts/allocation.h"
#include "launcher/protocol/channel.h"
#include "launcher/transport/host_problem.h"

namespace dstrain::launcher {

/// What a transport has to say about the agent of one node; exactly one of the two comes.
struct AgentLink {
  std::optional<Channel> channel;      ///< open; the agent's hello comes through it
  std::optional<HostProblem> problem;  ///< it never came
};

/// How a started agent, or what led to it, ended.
struct AgentEnding {
  int exit_code = 0;  ///< valid when signal is 0
  int signal = 0;
  std::string words;  ///< last line of the transport's own standard error, or empty
};

/// Starts agents on some nodes of a job and hands over a channel to each. Never blocks: the
/// controller polls it. Nothing that it started outlives it on this machine.
class Transport {
 public:
  using Time = std::chrono::steady_clock::time_point;

  virtual ~Transport() = default;
  /// Descriptors of its own to wait for, beside the channels it has handed over.
  virtual void add_polls(std::vector<pollfd>& fds) const = 0;
  /// Starts due work and processes new events. Sets links[node] once per node of its own.
  virtual void advance(std::vector<AgentLink>& links, Time now) = 0;
  /// When advance() must be called although nothing happens.
  [[nodiscard]] virtual std::optional<Time> deadline() const = 0;
  /// The node's channel is closed: waits up to `limit` for what carried it, then kills that.
  virtual AgentEnding end(int node, std::chrono::milliseconds limit) = 0;
  /// The agent must die now, its last word unheard; end() follows.
  virtual void kill(int node) = 0;
};

/// A child of this process with one end of a socketpair as its standard input and output, in a
/// session of its own, so that Ctrl-C reaches the controller alone. Its standard error stays ours.
/// `command`: a program and its arguments, normally this binary as `dstrain agent`.
[[nodiscard]] std::unique_ptr<Transport> make_local_transport(
    int node, const std::vector<std::string>& command);

/// Several that are used as one; each knows its own nodes and leaves the others alone.
[[nodiscard]] std::unique_ptr<Transport> combine(std::vector<std::unique_ptr<Transport>> parts);

/// One node of a job as a transport sees it.
struct NodeHost {
  int node = 0;  ///< index in links
  Host host;
};

struct SshOptions {
  std::vector<std::string> agent_command;  ///< program (absolute path) and arguments on the host
  std::filesystem::path config = {};       ///< ssh -F; empty: the user's own
  int window = 32;                         ///< connections that are being opened at once
  std::chrono::seconds connect_timeout{5};
  std::chrono::seconds hello_limit{60};  ///< from connection to an open channel with a first byte
  /// Copy the tree around agent_command's program (launcher/transport/ship.h) to hosts that do not
  /// have the same one, and start the agent from the copy.
  bool ship = false;
  /// NAME=VALUE for the agent, put before the program; seen by everybody there, so no secrets.
  std::vector<std::string> environment = {};
};
/// One ssh per host. Its standard streams are the channel. The remote command is constant but for
/// the quoted program; everything else travels in frames.
[[nodiscard]] std::unique_ptr<Transport> make_ssh_transport(std::vector<NodeHost> nodes,
                                                            SshOptions options);

struct SrunOptions {
  std::vector<std::string> agent_command;
  std::filesystem::path log;  ///< srun's own standard error; empty: kept for error messages alone
  std::chrono::seconds dial_limit{120};  ///< a prolog may take its time
};
/// One srun with one agent per node. The agents learn secret and address from srun's standard
/// input, dial the controller and prove that they know the secret.
[[nodiscard]] std::unique_ptr<Transport> make_srun_transport(std::vector<NodeHost> nodes,
                                                             SrunOptions options);

}  // namespace dstrain::launcher
