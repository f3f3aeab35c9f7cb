#pragma once

#include "engine/models/gpt2/config.h"
#include "engine/models/model.h"

/// GPT-2, Radford et al. 2019, sec. 2.3, under the names of Hugging Face files: learnt positions,
/// layer norms before each branch and the head. Files have the matrices of layers as
/// [inputs, outputs] (Family::transposed); in memory they are as all others.
namespace dstrain {

[[nodiscard]] Model gpt2_model(const ModelConfig& recipe, const ModelFamily& family,
                               const ModelInputs& inputs);

}  // namespace dstrain
