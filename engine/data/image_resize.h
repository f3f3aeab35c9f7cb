#pragma once

#include <cstdint>
#include <span>

#include "engine/data/image_decode.h"
#include "recipes/schema/recipe.h"

namespace dstrain {

/// How images of any size become the stored square.
struct SquareResize {
  Fit fit = Fit::crop;
  int side = 0;   ///< pixels of the square
  int input = 0;  ///< pixels of its middle that evaluation takes; at most `side`
  Interpolation filter = Interpolation::bilinear;
};

/// `pixels` [side, side, 3]: the image resized as `how` says. The filter widens with the reduction,
/// weights are of 22 bits and each of the two passes rounds to 8: the bits of PIL's resize, and its
/// middle square of `input` pixels those of transformers' center_crop after it.
void resize_to_square(const RgbImage& image, const SquareResize& how,
                      std::span<std::uint8_t> pixels);

}  // namespace dstrain
