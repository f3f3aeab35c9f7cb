#pragma once

#include <string>
#include <vector>

#include "engine/program/cost.h"

namespace dstrain {

/// Adds up what the layers of a block cost, in the order in which they run.
///
/// Each tensor is counted once: a layer counts what it keeps of its input, unless that is the
/// block's input or another layer keeps it. Kernels are those of a GPU (engine/kernels/README.md):
/// products, and passes for statistics, for normalisation with activation, and for gradients.
class LayerCosts {
 public:
  LayerCosts(std::string block, int compute_bytes);

  void add(LayerCost layer, std::vector<KernelCost> forward = {},
           std::vector<KernelCost> backward = {});
  /// For an operator that is no layer of its own.
  void add_kernels(std::vector<KernelCost> forward, std::vector<KernelCost> backward);
  /// Collectives of the layers, in their order.
  [[nodiscard]] std::vector<Exchange>& exchanges() { return cost_.exchanges; }

  /// Tensors that a layer's forward, and its backward, hold at once beside what is kept.
  void hold(Bytes forward, Bytes backward);
  /// Held all the while beside what layers hold.
  void hold_also(Bytes forward, Bytes backward);

  [[nodiscard]] int compute_bytes() const { return compute_bytes_; }
  /// Cost of a block that gets `input` and hands on `output`.
  [[nodiscard]] BlockCost finish(const std::vector<BoundaryTensor>& input,
                                 std::vector<BoundaryTensor> output);

 private:
  int compute_bytes_;
  Bytes held_forward_ = 0, held_backward_ = 0;
  BlockCost cost_;
  std::vector<LayerCost> layers_;
};

}  // namespace dstrain
