#pragma once

#include <string>
#include <vector>

#include "launcher/transport/dial_listener.h"
#include "launcher/transport/host_problem.h"
#include "launcher/transport/ssh_login.h"

namespace dstrain::launcher {

/// Who starts the agents of so many hosts: -1 for this machine, else the index of a host that does.
/// Two levels: this machine starts `radix` hosts, or more where each would have to start above
/// `radix` others, and they share the rest evenly.
[[nodiscard]] std::vector<int> plan_tree(int num_hosts, int radix);

/// The controller's part in an ssh tree: what a host is asked to start, and what has become of it.
/// Agents that other hosts start dial and prove a secret, which reaches them through the standard
/// input of their ssh.
class SshTree {
 public:
  using Time = Transport::Time;

  explicit SshTree(std::chrono::seconds limit) : limit_(limit) {}

  /// Frame for the agent of `parent` with the awaited logins that it is to start; empty without
  /// any.
  [[nodiscard]] std::string order(const std::vector<SshLogin>& logins, int parent,
                                  std::vector<std::string> ssh, std::string command) const;

  [[nodiscard]] DialListener& listener() { return listener_; }
  [[nodiscard]] const DialListener& listener() const { return listener_; }

  /// A host is started from here after all.
  void fell_back(int node, const Host& host, const HostProblem& problem);
  /// When nothing is awaited any more: one line about what was not as planned, once, or nothing.
  [[nodiscard]] std::string remark(std::size_t num_hosts);

 private:
  std::chrono::seconds limit_;
  DialListener listener_;
  std::size_t num_fallen_ = 0;
  int first_node_ = 0;  ///< of those that fell back, the first in host order
  std::string first_;
};

/// What a host says about another one that it could not start.
[[nodiscard]] HostProblem tree_problem(const std::string& parent, int exit_code,
                                       std::string_view words, std::chrono::seconds limit);

}  // namespace dstrain::launcher
