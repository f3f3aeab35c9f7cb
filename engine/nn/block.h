#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/kernels/parameter.h"
#include "engine/program/cost.h"

namespace dstrain {

using Tensors = std::vector<at::Tensor>;

/// One micro-batch as the model sees it. Its size never changes: a partial batch is filled up with samples of weight 0,
/// which add nothing to loss, gradients or counters.
struct Batch {
  at::Tensor images;   ///< [B, C, H, W], compute dtype, normalised
  at::Tensor labels;   ///< [B] int64
  at::Tensor weights;  ///< [B] fp32, 1 or 0
};

/// Sums over the samples seen so far, on the device: [loss, top-1 correct, top-5 correct, samples], fp32.
inline constexpr int kNumTotals = 4;

/// What the head needs beside its input.
struct Objective {
  double label_smoothing = 0;
  at::Tensor totals;  ///< [kNumTotals] fp32, added to
};

struct BatchShape {
  std::int64_t micro_batch = 0;
  int compute_bytes = 2;  ///< bytes per element of activations
};

/// A model is a list of blocks: stem, layers, head. The executor runs them one by one; autograd lives inside one block
/// only, so that parameters can come and go between blocks.
class Block {
 public:
  virtual ~Block() = default;

  [[nodiscard]] virtual const std::string& name() const = 0;
  /// In the order in which they lie in the flat group buffer.
  [[nodiscard]] virtual std::vector<Parameter*> parameters() = 0;
  /// `input` is what the block before returned (empty for the stem). The last block returns one scalar: the weighted sum
  /// of the samples' losses, fp32.
  [[nodiscard]] virtual Tensors forward(const Tensors& input, const Batch& batch,
                                        const Objective& objective) = 0;
  /// Cost of one micro-batch; `groups` is left to the caller.
  [[nodiscard]] virtual BlockCost cost(const BatchShape& shape) const = 0;
};

using Blocks = std::vector<std::unique_ptr<Block>>;

}  // namespace dstrain
