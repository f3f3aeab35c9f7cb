#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "engine/models/image/block.h"
#include "engine/models/image/inverted_residual.h"
#include "engine/nn/batch_norm.h"

/// Blocks of EfficientNet and MobileNetV3 under torchvision's names.
namespace dstrain {

/// Zeros around an image: as many on each side, or as TensorFlow has them: as many as are needed
/// for ceil(side / stride) outputs, the odd one below and right.
enum class ImagePadding { symmetric, same };

/// What the convolutions of one model have in common.
struct MobileRules {
  BatchNormOptions norm;
  ImagePadding padding = ImagePadding::symmetric;
  /// First weights of depthwise convolutions by the fan-out of a group, as TensorFlow and timm draw
  /// them, and not of all channels, as torchvision does.
  bool fan_of_group = false;
};

/// One block: an inverted residual.
struct MobileBlock {
  std::int64_t hidden = 0, channels = 0;  ///< between the convolutions, and of the output
  std::int64_t kernel = 3, stride = 1;    ///< of the depthwise convolution
  ops::ImageActivation activation = ops::ImageActivation::silu;
  std::optional<SqueezeExciteOptions> excite = std::nullopt;
  double drop_path = 0;
};

/// `value` rounded to a multiple of 8, but not down by more than a tenth: how the channels of
/// mobile networks are rounded.
[[nodiscard]] std::int64_t multiple_of_8(double value);

/// A square convolution with the padding of `rules` for an image of `side` pixels.
[[nodiscard]] ops::ConvShape mobile_conv(std::int64_t in, std::int64_t out, std::int64_t kernel,
                                         std::int64_t stride, std::int64_t side,
                                         ImagePadding padding);

/// A convolution NAME.0 and its norm NAME.1.
[[nodiscard]] ConvNorm mobile_conv_norm(const std::string& name, const ops::ConvShape& shape,
                                        const MobileRules& rules, ops::ImageActivation activation);

/// The layers are NAME.block.0, .1 and so on; one that has as many channels between its
/// convolutions as its input has no first 1x1 convolution. `size`: of the input, and then of the
/// output.
[[nodiscard]] std::unique_ptr<InvertedResidual> mobile_block(const std::string& name,
                                                             const MobileBlock& block,
                                                             const MobileRules& rules,
                                                             FeatureSize& size);

/// What timm calls a tensor of a block, both without the block's name ("block.0.0.weight").
[[nodiscard]] std::string timm_mobile_layer(const std::string& layer, bool expands, bool excites);

}  // namespace dstrain
