#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/models/image/block.h"
#include "engine/nn/conv_norm.h"

namespace dstrain {

/// relu(branch(x) + shortcut(x)); the shortcut is x itself or a 1x1 convolution with its norm.
class ResidualBlock final : public ImageBlock {
 public:
  /// The activation of the branch's last norm is ReLU, which follows the sum.
  ResidualBlock(const std::string& name, const FeatureSize& input, std::vector<ConvNorm> branch,
                std::optional<ConvNorm> shortcut)
      : ImageBlock(name, input, /*stem=*/false),
        branch_(std::move(branch)),
        shortcut_(std::move(shortcut)) {}

  [[nodiscard]] std::vector<Parameter*> parameters() override;
  [[nodiscard]] std::vector<BlockState*> state() override;
  using ImageBlock::run;
  [[nodiscard]] Features run(LayerPass& pass, const Features& x) override;

 private:
  std::vector<ConvNorm> branch_;
  std::optional<ConvNorm> shortcut_;
};

}  // namespace dstrain
