#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/kernels/pool/ops_pool.h"
#include "engine/models/image/block.h"
#include "engine/nn/conv_norm.h"

namespace dstrain {

/// Convolutions one after the other, then a pool: a stem, or a stage of VGG.
class ConvStage final : public ImageBlock {
 public:
  /// With a norm, its activation follows it; without, ReLU follows the convolution.
  struct Layer {
    Conv conv;
    std::optional<BatchNorm> norm;
  };
  ConvStage(const std::string& name, const FeatureSize& input, bool stem, std::vector<Layer> layers,
            const std::optional<ops::PoolShape>& pool)
      : ImageBlock(name, input, stem), layers_(std::move(layers)), pool_(pool) {}

  [[nodiscard]] std::vector<Parameter*> parameters() override;
  [[nodiscard]] std::vector<BlockState*> state() override;
  using ImageBlock::run;
  [[nodiscard]] Features run(LayerPass& pass, const Features& x) override;

 private:
  /// The pool is part of the last layer's operator, which has a ReLU.
  [[nodiscard]] bool pools_in_layer() const;

  std::vector<Layer> layers_;
  std::optional<ops::PoolShape> pool_;
};

}  // namespace dstrain
