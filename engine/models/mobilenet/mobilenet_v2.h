#pragma once

#include "engine/models/family.h"
#include "engine/models/model.h"
#include "engine/recipe/families.h"

namespace dstrain {

/// Sandler et al. 2018, arXiv:1801.04381, table 2, under torchvision's names.
[[nodiscard]] Model mobilenet_v2_model(const ModelConfig& recipe, const ModelFamily& family,
                                       const ModelInputs& inputs);

/// timm numbers the blocks by stage and calls their layers by what they do.
[[nodiscard]] FileTensor mobilenet_v2_timm_tensor(const FileTensor& tensor);

}  // namespace dstrain
