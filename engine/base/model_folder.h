#pragma once

#include <filesystem>
#include <string>

namespace dstrain {

/// What would do where `path`, given as a model's folder, holds no model but something like one: a
/// run, a checkpoint, an adapter or a folder of the Hugging Face cache, or where it is a name of
/// Hugging Face and no folder. Empty for anything else.
[[nodiscard]] std::string hint_for_model_folder(const std::filesystem::path& path);

}  // namespace dstrain
