#include "launcher/transport/ssh_tree.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/base/error.h"
#include "launcher/protocol/protocol.h"

namespace dstrain::launcher {

std::vector<int> plan_tree(int num_hosts, int radix) {
  const int num_own = std::min(num_hosts, std::max(radix, (num_hosts + radix) / (radix + 1)));
  std::vector<int> parents(static_cast<std::size_t>(num_hosts), -1);
  for (int host = num_own; host < num_hosts; ++host)
    parents[static_cast<std::size_t>(host)] = (host - num_own) % num_own;
  return parents;
}

std::string SshTree::order(const std::vector<SshLogin>& logins, int parent,
                           std::vector<std::string> ssh, std::string command) const {
  TreeOrder order;
  for (const SshLogin& login : logins) {
    if (login.stage != SshLogin::Stage::awaited || login.parent != parent) continue;
    order.children.push_back({std::to_string(login.host.node), ssh_destination(login.host.host)});
  }
  if (order.children.empty()) return {};
  order.target = to_line(listener_.target());
  order.limit_ms = std::chrono::milliseconds(limit_).count();
  order.ssh = std::move(ssh);
  order.command = std::move(command);
  return encode(order);
}

void SshTree::fell_back(int node, const Host& host, const HostProblem& problem) {
  if (num_fallen_++ > 0 && node > first_node_) return;
  first_node_ = node;
  first_ = fmt::format("{}: {}: {}", host.name, kind_name(problem.kind), problem.text);
}

std::string SshTree::remark(std::size_t num_hosts) {
  if (num_fallen_ == 0) return {};
  return fmt::format("{} of {} hosts are started from here, not from other hosts; first {}",
                     std::exchange(num_fallen_, 0), num_hosts, first_);
}

HostProblem tree_problem(const std::string& parent, int exit_code, std::string_view words,
                         std::chrono::seconds limit) {
  HostProblem problem;
  if (exit_code == 0) {
    problem = {HostProblem::Kind::timeout,
               fmt::format("no word from dstrain there within {} s", limit.count()), ""};
  } else if (const auto at = words.find("error: ");
             exit_code == dstrain::exit_code(ErrorKind::hosts) && at != std::string_view::npos) {
    problem = {HostProblem::Kind::connection, quote_output(words.substr(at + 7)), ""};
  } else {
    problem = classify_ssh(exit_code, words);
  }
  problem.text = fmt::format("from {}: {}", parent, problem.text);
  return problem;
}

}  // namespace dstrain::launcher
