#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/nn/feature_shape.h"
#include "engine/nn/layered_block.h"

/// What the blocks of convolutional models share.
///
/// Legend: B samples, H, W height and width, C channels. Between blocks travels {x}, one dense
/// tensor [B, H, W, C].
namespace dstrain {

/// Height, width and channels of one sample.
struct FeatureSize {
  std::int64_t height = 0, width = 0, channels = 0;
  [[nodiscard]] FeatureShape of(std::int64_t samples) const {
    return {samples, height, width, channels};
  }
};

class ImageBlock : public LayeredBlock {
 public:
  /// `input` is what the block gets of a sample; of the stem the image.
  ImageBlock(std::string name, const FeatureSize& input, bool stem)
      : LayeredBlock(Works::on_images), name_(std::move(name)), input_(input), stem_(stem) {}
  [[nodiscard]] const std::string& name() const override { return name_; }
  /// Puts `prefix` before the names of the block and of its tensors.
  void put_under(const std::string& prefix);
  /// What it hands on of a sample.
  [[nodiscard]] FeatureSize output();

  [[nodiscard]] std::vector<Features> run(LayerPass& pass,
                                          const std::vector<Features>& input) final {
    return {run(pass, input.at(0))};
  }
  /// The layers, from the block's input to what it hands on.
  [[nodiscard]] virtual Features run(LayerPass& pass, const Features& x) = 0;
  /// [B, H, W, C]: of the stem a view of the images.
  [[nodiscard]] Tensors input_of(const Tensors& input, const Batch& batch) const override;
  [[nodiscard]] std::vector<BoundaryTensor> input_sizes(const BatchShape& shape) const override {
    return {{input_.of(shape.micro_batch).sizes(), shape.compute_bytes}};
  }
  /// Channels of its input.
  [[nodiscard]] std::int64_t channels() const { return input_.channels; }

 private:
  std::string name_;
  FeatureSize input_;
  bool stem_;
};

}  // namespace dstrain
