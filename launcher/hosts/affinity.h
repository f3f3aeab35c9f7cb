#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/base/system_files.h"
#include "launcher/hosts/allocation.h"

namespace dstrain::launcher {

/// What decides where the ranks of one node may run.
struct AffinityRequest {
  int num_ranks = 1;  ///< rank i of the node uses the i-th visible GPU
  /// CUDA_VISIBLE_DEVICES of the ranks; unset: all.
  std::optional<std::string> visible_devices = {};
  bool pci_order = false;         ///< CUDA_DEVICE_ORDER=PCI_BUS_ID
  std::vector<int> allowed = {};  ///< CPUs that the agent itself may use
};

/// A CPU set for each rank of a node.
struct Affinity {
  /// By local rank, each sorted; disjoint and, on one NUMA node, equal to within one core. Empty:
  /// the ranks are not bound.
  std::vector<std::vector<int>> cpus;
  std::vector<int> numa_nodes;  ///< by local rank; empty when unbound
  std::string reason;           ///< why the ranks are not bound, or what differs from the rule
};

/// Request of this process for `num_ranks` ranks, from CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER
/// (looked up in `variables`) and this process's own CPU set.
[[nodiscard]] AffinityRequest affinity_request(int num_ranks, const Variables& variables);

/// Binds each rank to cores of the NUMA node of its GPU; hyperthreads of a core stay together, and
/// ranks that share a node share its cores evenly. A rank whose node has no allowed CPU goes to the
/// node with the most cores per rank. No binding without GPUs, when the allowed CPUs are on one
/// node, or when the place or the order of the GPUs is not known. Reads
/// sys/bus/pci/devices/*/{numa_node,local_cpulist}, sys/devices/system/{node,cpu} and
/// proc/driver/nvidia/gpus/*/information.
[[nodiscard]] Affinity plan_affinity(const AffinityRequest& request, const SystemRoots& roots = {});

/// One line: "local rank 0: cpus 0-11,96-107 (NUMA node 0); ..." or why there is no binding.
[[nodiscard]] std::string describe(const Affinity& affinity);

/// Restricts the calling thread to `cpus`; allocates nothing, so that it may run between fork and
/// exec. An empty set changes nothing. False when the kernel refuses.
bool bind_to_cpus(std::span<const int> cpus);

}  // namespace dstrain::launcher
