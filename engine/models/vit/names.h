#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/models/vit/config.h"

namespace dstrain {

/// ViT, Dosovitskiy et al. 2021, arXiv:2010.11929.
extern const VitKind kVit;

/// The layers of ViT and DeiT, and of DINOv2's attention, as files and transformers 4 call them.
[[nodiscard]] VitNames vit_names(std::string_view prefix);

/// The name that transformers 5 has in memory for a tensor of ViT or DeiT; `prefix` is "vit." or
/// "deit.".
[[nodiscard]] std::string later_vit_name(const std::string& name, std::string_view prefix);

/// The names under which files keep the tensor that we and most files call `name`: also the `later`
/// one, and both without the prefix, as models without a head have them.
[[nodiscard]] std::vector<std::string> names_in_files(const std::string& name,
                                                      const std::string& later,
                                                      std::string_view prefix);

/// names_in_files of ViT.
[[nodiscard]] std::vector<std::string> vit_file_names(const std::string& name);
/// later_vit_name of ViT.
[[nodiscard]] std::string vit_memory_name(const std::string& name);

}  // namespace dstrain
