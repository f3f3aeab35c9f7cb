#include "launcher/job/rendezvous_address.h"

#include <string>

namespace dstrain::launcher {
namespace {

bool is_remote(const std::string& address) {
  return !address.empty() && !address.starts_with("127.") && address != "::1";
}

std::string first_nodes_address(const std::vector<JobNode>& nodes) {
  if (is_remote(nodes.front().hello.address)) return nodes.front().hello.address;
  // A local agent has no connection; the controller beside it is seen by the others.
  for (const JobNode& node : nodes) {
    if (&node != &nodes.front() && is_remote(node.hello.peer_address)) {
      return node.hello.peer_address;
    }
  }
  return "127.0.0.1";
}

}  // namespace

void choose_addresses(std::vector<JobNode>& nodes) {
  std::string& master = nodes.front().job.rendezvous_address;
  if (nodes.size() == 1) {
    if (master.empty()) master = "127.0.0.1";
    return;
  }
  master = first_nodes_address(nodes);
  for (JobNode& node : nodes) {
    std::string peer = node.index > 0 ? master : nodes[1].hello.address;
    if (!is_remote(peer)) peer = node.hello.peer_address;
    node.job.peer_address = peer;
  }
}

}  // namespace dstrain::launcher
