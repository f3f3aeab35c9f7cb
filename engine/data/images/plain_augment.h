#pragma once

#include "engine/kernels/image/augment.h"
#include "engine/recipe/recipe.h"

namespace dstrain {

/// How augment() makes what a model of so many channels and pixels takes, without random choices:
/// the middle of the stored image, normalised.
[[nodiscard]] AugmentOptions plain_augment(const NormalizeConfig& normalize, int channels,
                                           int image_size);

}  // namespace dstrain
