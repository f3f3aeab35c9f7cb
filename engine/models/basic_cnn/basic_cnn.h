#pragma once

#include "engine/models/model.h"
#include "engine/recipe/families.h"

namespace dstrain {

/// Three times a 3x3 convolution, batch norm, ReLU and a pool of 2, with 32, 64 and 128 channels;
/// then the mean over the image and a linear map. For tests and first steps: it learns the built-in
/// digits in seconds.
[[nodiscard]] Model basic_cnn_model(const ModelConfig& recipe, const ModelFamily& family,
                                    const ModelInputs& inputs);

}  // namespace dstrain
