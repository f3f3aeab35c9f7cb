#pragma once

#include "engine/models/family.h"
#include "engine/models/model.h"
#include "engine/recipe/families.h"

namespace dstrain {

/// Howard et al. 2019, arXiv:1905.02244, tables 1 and 2, under torchvision's names. Those called
/// `timm-` have the eps and momentum of timm's batch norms, which are not torchvision's.
[[nodiscard]] Model mobilenet_v3_model(const ModelConfig& recipe, const ModelFamily& family,
                                       const ModelInputs& inputs);

/// timm numbers the blocks by stage, calls their layers by what they do, and has a convolution
/// where torchvision has the first linear map.
[[nodiscard]] FileTensor mobilenet_v3_large_timm_tensor(const FileTensor& tensor);
[[nodiscard]] FileTensor mobilenet_v3_small_timm_tensor(const FileTensor& tensor);

}  // namespace dstrain
