#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>

#include "engine/nn/block.h"
#include "engine/nn/image_shape.h"

/// What the blocks of convolutional models share.
///
/// Legend: B samples, H, W height and width, C channels. Between blocks travels {x}, one dense
/// tensor [B, H, W, C].
namespace dstrain {

/// Height, width and channels of one sample.
struct FeatureSize {
  std::int64_t height = 0, width = 0, channels = 0;
  [[nodiscard]] ImageShape of(std::int64_t samples) const {
    return {samples, height, width, channels};
  }
};

class ImageBlock : public Block {
 public:
  /// `input` is what the block gets of a sample; of the stem the image.
  ImageBlock(std::string name, const FeatureSize& input, bool stem)
      : name_(std::move(name)), input_(input), stem_(stem) {}
  [[nodiscard]] const std::string& name() const override { return name_; }
  /// Puts `prefix` before the names of the block and of its tensors.
  void put_under(const std::string& prefix);

 protected:
  /// The block's input [B, H, W, C]: of the stem a view of the images.
  [[nodiscard]] at::Tensor input_of(const Tensors& input, const Batch& batch) const;
  [[nodiscard]] ImageShape input_shape(const BatchShape& shape) const {
    return input_.of(shape.micro_batch);
  }

 private:
  std::string name_;
  FeatureSize input_;
  bool stem_;
};

}  // namespace dstrain
