#pragma once

#include <string>

namespace dstrain {

/// Which machine is planned for.
struct MachineOptions {
  std::string name;             ///< built in or measured; empty: plan_machine's choice
  int per_node = 0;             ///< ranks of a node; 0: the machine's
  double network_gb_per_s = 0;  ///< between nodes, 1e9 bytes a second of a node; 0: the machine's
};

}  // namespace dstrain
