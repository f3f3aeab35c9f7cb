#pragma once

#include "engine/models/family.h"
#include "engine/models/model.h"
#include "engine/recipe/families.h"

namespace dstrain {

/// Liu et al. 2022, arXiv:2201.03545, sec. 3, under torchvision's names.
[[nodiscard]] Model convnext_model(const ModelConfig& recipe, const ModelFamily& family,
                                   const ModelInputs& inputs);

/// timm calls the layers by what they do.
[[nodiscard]] FileTensor convnext_timm_tensor(const FileTensor& tensor);

}  // namespace dstrain
