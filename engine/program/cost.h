#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/base/units.h"
#include "engine/mesh/split.h"
#include "engine/program/comm.h"

namespace dstrain {

inline constexpr Bytes kFloatBytes = 4;  ///< of a value in fp32

struct MatrixShape {
  std::int64_t rows = 0, columns = 0;
};

/// Parameters that are gathered, reduced and updated together: normally those of one block. A group
/// that several blocks read (a tied head) is listed by each.
struct GroupCost {
  std::string name;
  std::vector<std::int64_t> tensor_sizes;  ///< elements of each parameter tensor, in flat order
  bool trainable = true;  ///< false: frozen weights, without gradient, master or moments
  Cut cut = Cut::none;    ///< of all its weights
  /// Of the first tensors, which a rule of whole matrices updates: how many, and the shapes of
  /// their matrices in flat order. A tensor may stack several.
  int hidden_tensors = 0;
  std::vector<MatrixShape> matrices = {};
  int leading_matrices = 0;  ///< tensors in front that are no vectors; none comes after a vector
};

/// A tensor that a block hands to the next one. A rank that receives it must know its shape.
struct BoundaryTensor {
  std::vector<std::int64_t> shape;
  int width = 2;  ///< bytes of an element, which is of the compute type; of the loss: 4
  [[nodiscard]] Bytes bytes() const {
    Bytes product = width;
    for (const std::int64_t size : shape) product *= size;
    return product;
  }
};

/// What one layer of a block (a linear map, a norm, an attention) costs for one micro-batch.
struct LayerCost {
  std::string name;             ///< as files call its parameters, or what it does
  std::int64_t parameters = 0;  ///< 0 for a tied table, which counts where it is first read
  std::int64_t trained = 0;     ///< of those
  Flops forward_flops = 0;
  Bytes saved_bytes = 0;
  Flops weight_flops = 0;  ///< of backward: gradients of matrices that can come later
  Bytes held_bytes = 0;    ///< what those need

  LayerCost& operator+=(const LayerCost& other) {
    parameters += other.parameters;
    trained += other.trained;
    forward_flops += other.forward_flops;
    saved_bytes += other.saved_bytes;
    weight_flops += other.weight_flops;
    held_bytes += other.held_bytes;
    return *this;
  }
};
[[nodiscard]] inline LayerCost total(const std::vector<LayerCost>& layers) {
  LayerCost sum;
  for (const LayerCost& layer : layers) sum += layer;
  return sum;
}

/// What one block costs for one micro-batch, stated by the block from its shapes (a test compares
/// it with what autograd saved).
struct BlockCost {
  std::string name;
  std::vector<int> groups;  ///< parameter groups the block reads
  Flops forward_flops = 0;  ///< multiply-adds count 2; backward is counted as twice this
  Bytes saved_bytes = 0;  ///< kept by autograd from forward to backward, without the block's input
  // Of a backward in two parts.
  Flops weight_flops = 0;  ///< gradients of the matrices, a part of backward
  Bytes held_bytes = 0;    ///< kept from the first part to the second; 0: it stays whole
  std::vector<BoundaryTensor> boundary = {};  ///< what it hands on, which is kept as the next input
  Bytes forward_workspace = 0;  ///< transient beyond the two while the block runs forward
  Bytes backward_workspace =
      0;  ///< transient beyond the two while the block runs backward, input gradient included
  Bytes state_bytes = 0;  ///< of its untrained tensors, which every rank holds whole
  /// fp32 numbers of those that norm sums over the ranks (StateChange::step_mean).
  std::int64_t step_sums = 0;
  /// Bytes that its kernels move in forward, and in backward; 0: its parameters, input, output and
  /// what it saves.
  Bytes forward_traffic = 0, backward_traffic = 0;
  std::vector<Exchange> exchanges = {};  ///< collectives inside the block, in their order
  /// The host reads numbers of the device while the block runs: no CUDA graph can hold it.
  bool host_reads = false;
  /// In their order, all parameters, FLOPs and saved bytes of the block; empty: not told apart.
  std::vector<LayerCost> layers = {};

  /// Sets the FLOPs and saved bytes to those of its layers.
  void take(std::vector<LayerCost> own_layers) {
    layers = std::move(own_layers);
    const LayerCost sum = total(layers);
    forward_flops = sum.forward_flops;
    saved_bytes = sum.saved_bytes;
  }

  [[nodiscard]] Bytes boundary_bytes() const {
    Bytes sum = 0;
    for (const BoundaryTensor& tensor : boundary) sum += tensor.bytes();
    return sum;
  }
};

struct ModelCost {
  std::vector<GroupCost> groups;
  std::vector<BlockCost> blocks;
  Bytes batch_bytes = 0;  ///< one micro-batch of inputs on the device, augmentation output included
};

}  // namespace dstrain
