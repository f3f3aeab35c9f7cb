#pragma once

#include <string>
#include <vector>

namespace dstrain {

/// The names under which files keep the tensor that we and most files call `name`: also without the
/// `vit.` prefix (ViTModel), and the names that transformers 5 uses in memory.
[[nodiscard]] std::vector<std::string> vit_file_names(const std::string& name);

/// The name that transformers 5 has in memory.
[[nodiscard]] std::string vit_memory_name(const std::string& name);

}  // namespace dstrain
