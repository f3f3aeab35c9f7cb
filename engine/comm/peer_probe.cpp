#include "engine/comm/peer_probe.h"

#include <fmt/format.h>

#include <chrono>
#include <thread>

namespace dstrain::comm {
namespace {

using Clock = std::chrono::steady_clock;

/// No word is 0, and no two ranks send equal ones (multiplicative hashing, Knuth vol. 3, 6.4).
std::vector<std::uint32_t> pattern_of(int rank, std::size_t words) {
  std::vector<std::uint32_t> pattern(words);
  for (std::size_t i = 0; i < words; ++i)
    pattern[i] =
        (static_cast<std::uint32_t>(i) * 2654435761U + static_cast<std::uint32_t>(rank) * 40503U) |
        1U;
  return pattern;
}

/// What is wrong with the copies of `peer` to this rank; empty: nothing.
std::string fault_of(const PeerPaths& paths, int peer, Clock::time_point deadline) {
  while (!paths.said(peer)) {
    if (Clock::now() > deadline) return "do not arrive";
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return paths.arrived(peer) == pattern_of(peer, paths.words) ? "" : "arrive wrong";
}

}  // namespace

std::string probe_peers(Store& store, const Group& group, const PeerPaths& paths,
                        double patience_s) {
  const auto key = [&](int rank) { return group.key(fmt::format("peer_probe/{}", rank)); };
  const std::vector<std::uint32_t> own = pattern_of(group.rank, paths.words);
  std::string found;
  for (int peer = 0; peer < group.size; ++peer) {
    if (peer != group.rank && !paths.begin(peer, own) && found.empty())
      found = fmt::format("rank {} to rank {} cannot begin", group.rank, peer);
  }
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                           std::chrono::duration<double>(patience_s));
  for (int peer = 0; peer < group.size && found.empty(); ++peer) {
    if (peer == group.rank) continue;
    if (const std::string fault = fault_of(paths, peer, deadline); !fault.empty())
      found = fmt::format("rank {} to rank {} {}", peer, group.rank, fault);
  }
  store.set(key(group.rank), found);
  const auto timeout = std::chrono::milliseconds(static_cast<std::int64_t>(group.timeout_s * 1e3));
  std::string first;
  for (int rank = 0; rank < group.size; ++rank) {
    const std::string theirs = store.get(key(rank), timeout);
    if (first.empty()) first = theirs;
  }
  if (first.empty()) return {};
  return fmt::format("copies between GPUs of group {} from its {}: NCCL is used instead",
                     group.name, first);
}

}  // namespace dstrain::comm
