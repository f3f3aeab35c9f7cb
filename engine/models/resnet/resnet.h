#pragma once

#include "engine/models/model.h"
#include "engine/recipe/families.h"

namespace dstrain {

/// ResNet-18 and -50. He et al. 2016, arXiv:1512.03385, table 1, with the stride in the 3x3
/// convolution of a bottleneck and torchvision's names.
[[nodiscard]] Model resnet_model(const ModelConfig& recipe, const ModelFamily& family,
                                 const ModelInputs& inputs);

}  // namespace dstrain
