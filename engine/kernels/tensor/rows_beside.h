#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "engine/comm/communicator.h"

/// Exchanges of rows inside operators, which work on some rows while others travel. Not for other
/// layers.
namespace dstrain::ops {

/// Null for one rank alone, which exchanges nothing.
[[nodiscard]] inline Communicator* others(Communicator* ranks) {
  return ranks == nullptr || ranks->size() == 1 ? nullptr : ranks;
}

/// [m, D] of each rank -> [M, D].
[[nodiscard]] at::Tensor all_gathered(const at::Tensor& x, Communicator& ranks);
/// [M, D] -> this rank's rows of the sum over ranks, [m, D]. `meanwhile` may still write this
/// rank's rows of x, which then is contiguous.
[[nodiscard]] at::Tensor reduce_scattered(
    const at::Tensor& x, Communicator& ranks, const Communicator::Work& meanwhile = [] {});

/// Calls `work(first, count)` for the rows of this rank, of `rows` in all.
template <class Work>
void with_own(std::int64_t rows, const Communicator& ranks, const Work& work) {
  const std::int64_t own = rows / ranks.size();
  work(own * ranks.rank(), own);
}

/// And for those of the others.
template <class Work>
void with_others(std::int64_t rows, const Communicator& ranks, const Work& work) {
  const std::int64_t own = rows / ranks.size(), first = own * ranks.rank(), end = first + own;
  if (first > 0) work(0, first);
  if (end < rows) work(end, rows - end);
}

/// Gathers `own` [m, ...] into `all` [M, ...]. Calls `work(rows, first)` with this rank's rows
/// while the others' travel, and then with these, which have the numbers from `first` on; once,
/// with all, where nothing can go on meanwhile.
template <class Work>
void gather_beside(at::Tensor& all, const at::Tensor& own, Communicator& ranks, const Work& work) {
  if (!ranks.overlaps()) {
    ranks.all_gather(all, own);
    return work(all, 0);
  }
  ranks.all_gather(all, own, [&] { work(own, ranks.rank() * own.size(0)); });
  with_others(all.size(0), ranks, [&](std::int64_t first, std::int64_t count) {
    work(all.narrow(0, first, count), first);
  });
}

}  // namespace dstrain::ops
