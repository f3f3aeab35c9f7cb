#pragma once

#include <string>
#include <vector>

#include "engine/models/family.h"
#include "engine/models/model.h"
#include "engine/recipe/families.h"

namespace dstrain {

/// VGG-11, -13, -16 and -19, with and without batch norm. Simonyan & Zisserman 2015,
/// arXiv:1409.1556, table 1 (A, B, D, E), under torchvision's names.
[[nodiscard]] Model vgg_model(const ModelConfig& recipe, const ModelFamily& family,
                              const ModelInputs& inputs);

/// timm keeps the linear maps as convolutions.
[[nodiscard]] FileTensor vgg_timm_tensor(const FileTensor& tensor);

}  // namespace dstrain
