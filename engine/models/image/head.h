#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/models/image/block.h"
#include "engine/nn/conv_norm.h"
#include "engine/nn/layer_norm.h"
#include "engine/nn/linear.h"

namespace dstrain {

/// What stands between the last features and the loss.
struct HeadLayers {
  std::optional<ConvNorm> conv = std::nullopt;   ///< before the pool
  std::optional<LayerNorm> norm = std::nullopt;  ///< of the features
  /// Features are the means of a grid of so many windows along each side, in the order channel,
  /// row, column; 1: of the whole image.
  std::int64_t grid = 1;
  std::vector<Linear> hidden = {};  ///< each with `activation` behind it
  ops::ImageActivation activation = ops::ImageActivation::relu;
  double dropout = 0;  ///< of each hidden layer's output, or of the features where there is none
  Linear classifier;
};

/// Pool, linear maps, loss.
class ImageHead final : public ImageBlock {
 public:
  ImageHead(const std::string& name, const FeatureSize& input, HeadLayers layers)
      : ImageBlock(name, input, /*stem=*/false), layers_(std::move(layers)) {}

  [[nodiscard]] std::vector<Parameter*> parameters() override;
  [[nodiscard]] std::vector<BlockState*> state() override;
  using ImageBlock::run;
  [[nodiscard]] Features run(LayerPass& pass, const Features& x) override;

  /// What it pools: of the convolution before the pool, or of the input.
  [[nodiscard]] std::vector<Parameter*> pooled_parameters();
  [[nodiscard]] std::int64_t pooled_channels() const;
  /// Means over the image of what it pools: x -> [B, channels].
  [[nodiscard]] Features run_pooled(LayerPass& pass, const Features& x);
  /// x -> [B, classes].
  [[nodiscard]] Features run_logits(LayerPass& pass, const Features& x);

 private:
  HeadLayers layers_;
};

}  // namespace dstrain
