#pragma once

#include <string>
#include <vector>

namespace dstrain {

/// Names under which files of `family` may keep the tensor that we call `name`, the usual first.
[[nodiscard]] std::vector<std::string> file_names(const std::string& family,
                                                  const std::string& name);

/// The name that transformers 5 has for it in memory, which PEFT writes into its files.
[[nodiscard]] std::string memory_name(const std::string& family, const std::string& name);

}  // namespace dstrain
