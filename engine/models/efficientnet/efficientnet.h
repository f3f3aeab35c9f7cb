#pragma once

#include "engine/models/family.h"
#include "engine/models/model.h"
#include "engine/recipe/families.h"

namespace dstrain {

/// Tan & Le 2019, arXiv:1905.11946, table 1, under torchvision's names. Those called `tf-` pad as
/// TensorFlow does and have its eps; their first weights are drawn as timm draws them.
[[nodiscard]] Model efficientnet_model(const ModelConfig& recipe, const ModelFamily& family,
                                       const ModelInputs& inputs);

/// timm calls the layers by what they do.
[[nodiscard]] FileTensor efficientnet_timm_tensor(const FileTensor& tensor);

}  // namespace dstrain
