#pragma once

#include <utility>
#include <vector>

#include "engine/mesh/split.h"
#include "engine/nn/layer_pass.h"
#include "engine/nn/workspace.h"
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
                  .axis = Axis::tensor,
                  .bytes = bytes,
                  .width = width,
                  .pass = ExchangePass::forward,
                  .beside_flops = beside.forward});
  list.push_back({.op = CommOp::reduce_scatter,
                  .axis = Axis::tensor,
                  .bytes = bytes,
                  .width = width,
                  .pass = ExchangePass::backward,
                  .beside_flops = beside.backward});
}

/// ops::reduce_scatter_rows of such rows; `trained`: something before it needs a gradient.
inline void add_reduce_scatter_rows(std::vector<Exchange>& list, Bytes bytes, int width,
                                    bool trained = true, const BesideFlops& beside = {}) {
  list.push_back({.op = CommOp::reduce_scatter,
                  .axis = Axis::tensor,
                  .bytes = bytes,
                  .width = width,
                  .pass = ExchangePass::forward,
                  .beside_flops = beside.forward});
  if (!trained) return;
  list.push_back({.op = CommOp::all_gather,
                  .axis = Axis::tensor,
                  .bytes = bytes,
                  .width = width,
                  .pass = ExchangePass::backward,
                  .beside_flops = beside.backward});
}

/// Adds the `layers` of a branch from x [m, D] to as many rows, and what they `held`. Tensor ranks
/// gather their rows before the first of the layers and sum behind the last.
[[nodiscard]] inline Features add_branch(LayerCosts& costs, const Features& x,
                                         std::vector<LayerCost> layers, const AxisPart& tensor,
                                         const Workspace& held) {
  const Bytes whole = x.bytes() * tensor.count, gathered = tensor.whole() ? 0 : whole;
  if (!tensor.whole()) {
    add_all_gather_rows(costs.exchanges(), whole, costs.compute_bytes(),
                        beside_gather(layers.front(), tensor.count));
    add_reduce_scatter_rows(costs.exchanges(), whole, costs.compute_bytes(), /*trained=*/true,
                            beside_sum(layers.back(), tensor.count));
  }
  costs.add_branch(std::move(layers), held + Workspace{gathered, gathered});
  return x.sized(x.size.shape);
}

}  // namespace dstrain
