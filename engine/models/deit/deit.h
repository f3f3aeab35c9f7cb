#pragma once

#include <string>
#include <vector>

#include "engine/models/vit/config.h"

namespace dstrain {

/// DeiT, Touvron et al. 2021, arXiv:2012.12877: ViT with a distillation token. Models of two heads
/// answer with the mean of both; training goes on with the class token's.
extern const VitKind kDeit;

/// names_in_files (engine/models/vit/names.h); the class token's head of two has another name.
[[nodiscard]] std::vector<std::string> deit_file_names(const std::string& name);
[[nodiscard]] std::string deit_memory_name(const std::string& name);

}  // namespace dstrain
