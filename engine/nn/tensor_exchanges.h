#pragma once

#include <vector>

#include "engine/program/cost.h"

/// What the operators of engine/kernels/tensor exchange, for the costs of blocks.
namespace dstrain {

/// FLOPs of products beside an exchange forward and that of its gradient.
struct BesideFlops {
  Flops forward = 0, backward = 0;
};
/// By the layer behind rows that are gathered (ops::linear_of_gathered): its products with this
/// rank's rows, and that for the weight's gradient.
[[nodiscard]] inline BesideFlops beside_gather(const LayerCost& layer, int ranks) {
  return {.forward = layer.weight_flops / ranks, .backward = layer.weight_flops};
}
/// By the layer whose rows are summed (ops::summed_linear): its products with this rank's rows.
[[nodiscard]] inline BesideFlops beside_sum(const LayerCost& layer, int ranks) {
  return {.forward = layer.weight_flops / ranks, .backward = layer.weight_flops / ranks};
}

/// ops::all_gather_rows of rows that take `bytes` on all ranks together.
inline void add_all_gather_rows(std::vector<Exchange>& list, Bytes bytes, int width,
                                const BesideFlops& beside = {}) {
  list.push_back({.op = CommOp::all_gather,
                  .axis = CommAxis::tensor,
                  .bytes = bytes,
                  .width = width,
                  .pass = ExchangePass::forward,
                  .beside_flops = beside.forward});
  list.push_back({.op = CommOp::reduce_scatter,
                  .axis = CommAxis::tensor,
                  .bytes = bytes,
                  .width = width,
                  .pass = ExchangePass::backward,
                  .beside_flops = beside.backward});
}

/// ops::reduce_scatter_rows of such rows; `trained`: something before it needs a gradient.
inline void add_reduce_scatter_rows(std::vector<Exchange>& list, Bytes bytes, int width,
                                    bool trained = true, const BesideFlops& beside = {}) {
  list.push_back({.op = CommOp::reduce_scatter,
                  .axis = CommAxis::tensor,
                  .bytes = bytes,
                  .width = width,
                  .pass = ExchangePass::forward,
                  .beside_flops = beside.forward});
  if (!trained) return;
  list.push_back({.op = CommOp::all_gather,
                  .axis = CommAxis::tensor,
                  .bytes = bytes,
                  .width = width,
                  .pass = ExchangePass::backward,
                  .beside_flops = beside.backward});
}

}  // namespace dstrain
