#pragma once

#include <vector>

#include "engine/program/cost.h"

/// What the operators of engine/kernels/tensor exchange, for the costs of blocks.
namespace dstrain {

/// ops::all_gather_rows of rows that take `bytes` on all ranks together.
inline void add_all_gather_rows(std::vector<Exchange>& list, Bytes bytes, int width) {
  list.push_back({.op = CommOp::all_gather,
                  .axis = CommAxis::tensor,
                  .bytes = bytes,
                  .width = width,
                  .pass = ExchangePass::forward});
  list.push_back({.op = CommOp::reduce_scatter,
                  .axis = CommAxis::tensor,
                  .bytes = bytes,
                  .width = width,
                  .pass = ExchangePass::backward});
}

/// ops::reduce_scatter_rows of such rows; `trained`: something before it needs a gradient.
inline void add_reduce_scatter_rows(std::vector<Exchange>& list, Bytes bytes, int width,
                                    bool trained = true) {
  list.push_back({.op = CommOp::reduce_scatter,
                  .axis = CommAxis::tensor,
                  .bytes = bytes,
                  .width = width,
                  .pass = ExchangePass::forward});
  if (!trained) return;
  list.push_back({.op = CommOp::all_gather,
                  .axis = CommAxis::tensor,
                  .bytes = bytes,
                  .width = width,
                  .pass = ExchangePass::backward});
}

}  // namespace dstrain
