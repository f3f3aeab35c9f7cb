#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/models/image/block.h"
#include "engine/nn/conv_norm.h"
#include "engine/nn/squeeze_excite.h"

namespace dstrain {

struct InvertedLayers {
  std::optional<ConvNorm> expand;  ///< none: the depthwise convolution reads x
  ConvNorm depthwise;
  std::optional<SqueezeExcite> excite = std::nullopt;  ///< of what is projected
  ConvNorm project;
  bool residual = false;
  double drop_path = 0;  ///< share of samples that skip the branch beside a residual
};

/// A 1x1 convolution to more channels, a depthwise convolution, a 1x1 convolution to fewer, each
/// with its batch norm; x is added where `residual`. Sandler et al. 2018, arXiv:1801.04381, sec.
/// 3.3. What is convolved depthwise, and what is excited, is not kept, but made again in backward.
class InvertedResidual final : public ImageBlock {
 public:
  InvertedResidual(const std::string& name, const FeatureSize& input, InvertedLayers layers)
      : ImageBlock(name, input, /*stem=*/false), layers_(std::move(layers)) {}

  [[nodiscard]] std::vector<Parameter*> parameters() override;
  [[nodiscard]] std::vector<BlockState*> state() override;
  using ImageBlock::run;
  [[nodiscard]] Features run(LayerPass& pass, const Features& x) override;

 private:
  InvertedLayers layers_;
};

}  // namespace dstrain
