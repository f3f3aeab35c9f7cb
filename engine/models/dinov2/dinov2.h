#pragma once

#include <string>
#include <vector>

#include "engine/models/vit/config.h"

namespace dstrain {

/// DINOv2, Oquab et al. 2023, arXiv:2304.07193: ViT with layer scales, the largest one with gated
/// MLPs, whose classifier reads the class token and the mean patch. Positions are interpolated to
/// the image as transformers does.
extern const VitKind kDinov2;

/// names_in_files (engine/models/vit/names.h).
[[nodiscard]] std::vector<std::string> dinov2_file_names(const std::string& name);
[[nodiscard]] std::string dinov2_memory_name(const std::string& name);

}  // namespace dstrain
