#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/models/image/block.h"
#include "engine/nn/conv.h"
#include "engine/nn/layer_norm.h"
#include "engine/nn/mlp.h"

namespace dstrain {

/// A convolution whose windows do not overlap, with a layer norm over the channels of each pixel
/// behind it (the stem) or before it (between stages).
class PatchConv final : public ImageBlock {
 public:
  PatchConv(const std::string& name, const FeatureSize& input, bool stem, Conv conv, LayerNorm norm)
      : ImageBlock(name, input, stem),
        norm_first_(!stem),
        conv_(std::move(conv)),
        norm_(std::move(norm)) {}

  [[nodiscard]] std::vector<Parameter*> parameters() override;
  using ImageBlock::run;
  [[nodiscard]] Features run(LayerPass& pass, const Features& x) override;

 private:
  bool norm_first_;
  Conv conv_;
  LayerNorm norm_;
};

struct ConvNextLayers {
  Conv depthwise;
  LayerNorm norm;
  Mlp mlp;
  std::string scale;     ///< name of the layer scale
  double drop_path = 0;  ///< share of samples that skip the branch
};

/// x + scale mlp(norm(depthwise(x))), the norm and the feed-forward branch over the channels of
/// each pixel. Liu et al. 2022, arXiv:2201.03545, fig. 4.
class ConvNextBlock final : public ImageBlock {
 public:
  ConvNextBlock(const std::string& name, const FeatureSize& input, ConvNextLayers layers);

  [[nodiscard]] std::vector<Parameter*> parameters() override;
  using ImageBlock::run;
  [[nodiscard]] Features run(LayerPass& pass, const Features& x) override;

 private:
  ConvNextLayers layers_;
  Parameter scale_;
};

}  // namespace dstrain
