#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/comm/group.h"

namespace dstrain::comm {

/// How a rank copies to the others of its host. Drivers have told of peer access that then copied
/// zeros or nothing (NVIDIA/nccl-tests issue 117, dmlc/xgboost issue 11242).
struct PeerPaths {
  std::function<bool(int peer, const std::vector<std::uint32_t>& pattern)> begin;  ///< a copy
  std::function<bool(int peer)> said;  ///< the peer says that its copy is here
  std::function<std::vector<std::uint32_t>(int peer)> arrived;
  std::size_t words = 0;  ///< of a pattern
};

/// Collective over the group: copies a pattern between each two ranks, waits up to `patience_s` and
/// compares. Empty where all arrived whole on all ranks; else what failed first, the same text on
/// all ranks.
[[nodiscard]] std::string probe_peers(Store& store, const Group& group, const PeerPaths& paths,
                                      double patience_s);

}  // namespace dstrain::comm
