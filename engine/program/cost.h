#pragma once

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/taken_sizes.h"
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
  /// Elements of each parameter tensor in flat order; for a matrix in 4 bits the
  /// elements of the compute type that take as much memory.
  std::vector<std::int64_t> tensor_sizes;
  std::int64_t coded_away = 0;  ///< what matrices in 4 bits have more than those
  bool trainable = true;        ///< false: frozen weights, without gradient, master or moments
  Cut cut = Cut::none;          ///< of all its weights
  /// One block alone reads each of its tensors, so that backwards of several blocks may add to its
  /// gradient at once.
  bool of_one_reader = false;
  /// The first tensors, which a rule of whole matrices updates: how many, and the shapes of
  /// their matrices in flat order. A tensor may stack several.
  int hidden_tensors = 0;
  std::vector<MatrixShape> matrices = {};
  /// Tensors in front that are no vectors, nor codes; none comes after a vector.
  int leading_matrices = 0;

  /// The parameters in it.
  [[nodiscard]] std::int64_t elements() const {
    return std::accumulate(tensor_sizes.begin(), tensor_sizes.end(), coded_away);
  }
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
  Bytes made_again = 0;    ///< not saved, but computed again in backward, in one pass with others
  Flops again_flops = 0;   ///< of forward: what backward runs once more for that
  Bytes hidden_bytes = 0;  ///< as BlockCost::hidden_bytes
  Flops weight_flops = 0;  ///< of backward: gradients of matrices that can come later
  Bytes held_bytes = 0;    ///< what those need
  Flops fp8_flops = 0;     ///< of forward: in FP8
  Flops attention_flops = 0;                        ///< of forward: scores and sums of values
  Flops wide_attention_flops = 0;                   ///< of these: in wide heads, as BlockCost
  Bytes forward_traffic = 0, backward_traffic = 0;  ///< as in BlockCost

  LayerCost& operator+=(const LayerCost& other) {
    parameters += other.parameters;
    trained += other.trained;
    forward_flops += other.forward_flops;
    saved_bytes += other.saved_bytes;
    made_again += other.made_again;
    again_flops += other.again_flops;
    hidden_bytes += other.hidden_bytes;
    weight_flops += other.weight_flops;
    held_bytes += other.held_bytes;
    fp8_flops += other.fp8_flops;
    attention_flops += other.attention_flops;
    wide_attention_flops += other.wide_attention_flops;
    forward_traffic += other.forward_traffic;
    backward_traffic += other.backward_traffic;
    return *this;
  }
};
[[nodiscard]] inline LayerCost total(const std::vector<LayerCost>& layers) {
  LayerCost sum;
  for (const LayerCost& layer : layers) sum += layer;
  return sum;
}

/// Kernels that run one after the other and do one thing: a product, or a pass over tensors. Bound
/// by the matrix units, by the other arithmetic units or by memory, whichever takes longest.
struct KernelCost {
  Flops products = 0;
  Flops vector = 0;  ///< what no matrix unit does, where a kernel does much of it for a byte
  Bytes bytes = 0;   ///< read and written
  int launches = 1;
};

/// What one block costs for one micro-batch, stated by the block from its shapes (a test compares
/// it with what autograd saved).
/// Which size of a model.
enum class SizeOf { width, head, experts_per_token, images };
/// One that the kernels of a GPU do not take.
struct SizeMisfit {
  SizeOf of;
  std::int64_t size;
  TakenSizes taken;
};

struct BlockCost {
  std::string name;
  std::vector<int> groups;  ///< parameter groups the block reads
  Flops forward_flops = 0;  ///< multiply-adds count 2; backward is counted as twice this
  Bytes saved_bytes = 0;  ///< kept by autograd from forward to backward, without the block's input
  Bytes made_again = 0;   ///< moved as if it was saved, but computed again in backward
  /// Part of forward_flops that backward runs once more, and a recomputation leaves out.
  Flops again_flops = 0;
  /// Outputs of activation functions that backward writes once more, or does not where
  /// ProgramOptions::keep_hidden has them saved.
  Bytes hidden_bytes = 0;
  Bytes hidden_workspace = 0;  ///< added to backward_workspace then; below 0: taken off
  // A backward in two parts.
  Flops weight_flops = 0;  ///< gradients of the matrices, a part of backward
  Bytes held_bytes = 0;    ///< kept from the first part to the second; 0: it stays whole
  std::vector<BoundaryTensor> boundary = {};  ///< what it hands on, which is kept as the next input
  Bytes forward_workspace = 0;  ///< transient beyond the two while the block runs forward
  Bytes backward_workspace =
      0;  ///< transient beyond the two while the block runs backward, input gradient included
  Bytes state_bytes = 0;  ///< of its untrained tensors, which every rank holds whole
  /// fp32 numbers that norm sums over the ranks, of its untrained tensors (StateChange::step_mean)
  /// or figures of pairs.
  std::int64_t step_sums = 0;
  /// In forward, and in backward; empty: products of all FLOPs, and passes over its parameters,
  /// input, output and what it saves.
  std::vector<KernelCost> forward_kernels = {}, backward_kernels = {};
  Flops fp8_flops = 0;        ///< of forward_flops: in FP8
  Flops attention_flops = 0;  ///< of forward_flops: scores and sums of values, at their own rate
  Flops wide_attention_flops = 0;  ///< of these: in heads so wide that a slower library attends
  /// Moved beside all that: to read operands of FP8 and to write their codes, and by attention.
  Bytes forward_traffic = 0, backward_traffic = 0;
  int product_streams = 1;               ///< on which its products run at once
  std::vector<Exchange> exchanges = {};  ///< collectives inside the block, in their order
  /// The host reads numbers of the device while the block runs: no CUDA graph can hold it.
  bool host_reads = false;
  std::vector<SizeMisfit> misfits = {};  ///< of a block that runs on a GPU
  /// In their order, all parameters, FLOPs and saved bytes of the block; empty: not told apart.
  std::vector<LayerCost> layers = {};

  /// Sets the FLOPs and saved bytes to those of its layers.
  void take(std::vector<LayerCost> own_layers) {
    layers = std::move(own_layers);
    const LayerCost sum = total(layers);
    forward_flops = sum.forward_flops;
    saved_bytes = sum.saved_bytes;
    made_again = sum.made_again;
    again_flops = sum.again_flops;
    hidden_bytes = sum.hidden_bytes;
    fp8_flops = sum.fp8_flops;
    attention_flops = sum.attention_flops;
    wide_attention_flops = sum.wide_attention_flops;
    forward_traffic = sum.forward_traffic;
    backward_traffic = sum.backward_traffic;
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
