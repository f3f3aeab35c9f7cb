#pragma once

#include <cstdint>
#include <span>

namespace dstrain {

/// The operations of RandAugment and TrivialAugment, in the order of torchvision's tables.
enum class ImageOperation {
  identity,
  shear_x,
  shear_y,
  translate_x,
  translate_y,
  rotate,
  brightness,
  color,
  contrast,
  sharpness,
  posterize,
  solarize,
  auto_contrast,
  equalize
};
inline constexpr int kNumImageOperations = 14;
inline constexpr int kMagnitudes = 31;

/// How strong operations are: those of RandAugment (arXiv:1909.13719) or of TrivialAugment's wide
/// space (arXiv:2103.10158).
enum class OperationSpace { rand_augment, trivial_augment };

/// Strength `level` of kMagnitudes; translations depend on the image's size. As torchvision's
/// tables, before the random sign; 0 for operations without a strength.
[[nodiscard]] double magnitude_of(OperationSpace space, ImageOperation operation, int level,
                                  int width, int height);
/// Whether the strength gets a random sign.
[[nodiscard]] bool is_signed(ImageOperation operation);

/// `pixels` [height, width, channels], 1 or 3 channels, in place: what torchvision.transforms.v2
/// makes of a uint8 tensor, with nearest neighbours and zeros outside; where a neighbour is nearest
/// by less than single precision tells apart, maybe the other one.
void apply_operation(ImageOperation operation, double magnitude, std::span<std::uint8_t> pixels,
                     int width, int height, int channels);

}  // namespace dstrain
