#include "engine/kernels/attention/sequence_order.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "engine/base/error.h"

namespace dstrain::ops {
namespace {

/// `first`, then the sizes of one row of `rows`, whose own dimensions are the first `leading`.
std::vector<std::int64_t> sizes_of(std::vector<std::int64_t> first, const at::Tensor& rows,
                                   std::size_t leading) {
  const auto row = rows.sizes().slice(leading);
  first.insert(first.end(), row.begin(), row.end());
  return first;
}

}  // namespace

CutBatch CutBatch::of(std::int64_t rows, std::int64_t batch, const Communicator& ranks) {
  DSTRAIN_CHECK(batch > 0 && rows % (2 * batch) == 0,
                fmt::format("{} rows are not two parts of each of {} samples", rows, batch));
  return {.zigzag = {.ranks = ranks.size(), .rank = ranks.rank()},
          .batch = batch,
          .tokens = rows / (2 * batch)};
}

at::Tensor in_sample_order(const at::Tensor& by_rank, const CutBatch& cut) {
  const std::int64_t ranks = cut.zigzag.ranks;
  const at::Tensor source = by_rank.view(sizes_of({ranks, cut.batch, 2, cut.tokens}, by_rank, 2));
  at::Tensor rows = at::empty(sizes_of({cut.all_rows()}, by_rank, 2), by_rank.options());
  const at::Tensor out =
      rows.view(sizes_of({cut.batch, cut.zigzag.parts(), cut.tokens}, by_rank, 2));
  out.narrow(1, 0, ranks).copy_(source.select(2, 0).transpose(0, 1));
  out.narrow(1, ranks, ranks).copy_(source.select(2, 1).flip(0).transpose(0, 1));
  return rows;
}

at::Tensor in_rank_order(const at::Tensor& by_sample, const CutBatch& cut) {
  const std::int64_t ranks = cut.zigzag.ranks;
  at::Tensor out =
      at::empty(sizes_of({ranks, cut.batch, 2, cut.tokens}, by_sample, 3), by_sample.options());
  out.select(2, 0).copy_(by_sample.narrow(1, 0, ranks).transpose(0, 1));
  out.select(2, 1).copy_(by_sample.narrow(1, ranks, ranks).flip(1).transpose(0, 1));
  return out.view(sizes_of({ranks, cut.own_rows()}, by_sample, 3));
}

}  // namespace dstrain::ops
