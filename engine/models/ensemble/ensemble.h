#pragma once

#include "engine/models/model.h"
#include "engine/recipe/families.h"

namespace dstrain {

/// Convolutional models (model.members) that are trained together on one loss, that of the weighted
/// average of their outputs. Tensors are called as in the member, behind `members.INDEX.`.
/// Error{usage} names the member that does not fit.
[[nodiscard]] Model ensemble_model(const ModelConfig& recipe, const ModelFamily& family,
                                   const ModelInputs& inputs);

}  // namespace dstrain
