#pragma once

#include <vector>

#include "engine/nn/block.h"
#include "engine/nn/layer_pass.h"

namespace dstrain {

/// A block whose forward and cost follow from one description of its layers.
class LayeredBlock : public Block {
 public:
  [[nodiscard]] Tensors forward(const Tensors& input, const Batch& batch,
                                const BlockContext& context) final;
  [[nodiscard]] BlockCost cost(const BatchShape& shape) final;

  /// The layers, in their order: from what input_of() or input_sizes() gives to what the block
  /// hands on.
  [[nodiscard]] virtual std::vector<Features> run(LayerPass& pass,
                                                  const std::vector<Features>& input) = 0;
  /// What the layers get; Error{internal} where `input` is not what the block before hands on.
  [[nodiscard]] virtual Tensors input_of(const Tensors& input, const Batch& batch) const = 0;
  [[nodiscard]] virtual std::vector<BoundaryTensor> input_sizes(const BatchShape& shape) const = 0;

 protected:
  explicit LayeredBlock(Works works) : works_(works) {}
  /// Sizes of what the block hands on.
  [[nodiscard]] std::vector<BoundaryTensor> output_sizes(const BatchShape& shape);

 private:
  Works works_;
};

}  // namespace dstrain
