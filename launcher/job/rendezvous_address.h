#pragma once

#include <vector>

#include "launcher/job/job_node.h"

namespace dstrain::launcher {

/// Fills in, from the hellos of all nodes, the address at which the first node's agent holds the
/// rendezvous and for each node the address of another one, to choose network interfaces by. Rank
/// 0's node is reached where a connection from another host has already reached it.
void choose_addresses(std::vector<JobNode>& nodes);

}  // namespace dstrain::launcher
