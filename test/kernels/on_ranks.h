#pragma once

#include <functional>
#include <vector>

#include "engine/comm/thread_world.h"

namespace dstrain::test {

/// Calls `body(rank, ranks)` on each rank, which are threads.
inline void on_ranks(int count, const std::function<void(int rank, Communicator& ranks)>& body) {
  ThreadWorld world(count);
  std::vector<int> all;
  for (int rank = 0; rank < count; ++rank) all.push_back(rank);
  world.run([&](int rank) {
    const auto ranks = world.communicator({.name = "cut", .ranks = all, .rank = rank});
    body(rank, *ranks);
  });
}

/// The rows of `rank` of `count`.
inline at::Tensor part_of(const at::Tensor& x, int rank, int count) {
  const std::int64_t own = x.size(0) / count;
  return x.narrow(0, rank * own, own).clone();
}

}  // namespace dstrain::test
