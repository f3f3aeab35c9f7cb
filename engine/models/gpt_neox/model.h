#pragma once

#include <string>
#include <vector>

#include "engine/models/gpt_neox/config.h"
#include "engine/models/model.h"

/// GPT-NeoX, Black et al. 2022, arXiv:2204.06745, sec. 2, and Pythia, under the names of Hugging
/// Face files: layer norms, attention and MLP side by side, positions that turn a part of each
/// head.
namespace dstrain {

[[nodiscard]] Model gpt_neox_model(const ModelConfig& recipe, const ModelFamily& family,
                                   const ModelInputs& inputs);

/// Family::file_names: files call the head embed_out.
[[nodiscard]] std::vector<std::string> gpt_neox_file_names(const std::string& name);

}  // namespace dstrain
