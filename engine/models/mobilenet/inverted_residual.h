#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/models/image/block.h"
#include "engine/nn/conv_norm.h"

namespace dstrain {

/// A 1x1 convolution to more channels, a depthwise convolution, a 1x1 convolution to fewer, each
/// with its batch norm; x is added where `residual`. Sandler et al. 2018, arXiv:1801.04381, sec.
/// 3.3. What is convolved depthwise is not kept, but normalised again in backward.
class InvertedResidual final : public ImageBlock {
 public:
  /// Without `expand` the depthwise convolution reads x.
  InvertedResidual(const std::string& name, const FeatureSize& input,
                   std::optional<ConvNorm> expand, ConvNorm depthwise, ConvNorm project,
                   bool residual)
      : ImageBlock(name, input, /*stem=*/false),
        expand_(std::move(expand)),
        depthwise_(std::move(depthwise)),
        project_(std::move(project)),
        residual_(residual) {}

  [[nodiscard]] std::vector<Parameter*> parameters() override;
  [[nodiscard]] std::vector<BlockState*> state() override;
  [[nodiscard]] Tensors forward(const Tensors& input, const Batch& batch,
                                const BlockContext& context) override;
  [[nodiscard]] BlockCost cost(const BatchShape& shape) const override;

 private:
  std::optional<ConvNorm> expand_;
  ConvNorm depthwise_, project_;
  bool residual_;
};

}  // namespace dstrain
