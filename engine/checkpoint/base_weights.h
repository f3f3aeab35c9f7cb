#pragma once

#include <filesystem>
#include <string>

#include "engine/recipe/recipe.h"

namespace dstrain {

/// What the weights are that the recipe freezes and that checkpoints therefore leave out: the
/// content of the safetensors files in model.weights ("xxh3-128 of its files: ..."), or "random
/// weights of seed 42". Empty when the recipe freezes nothing. Reads the files whole, several parts
/// at a time.
[[nodiscard]] std::string base_reference(const Recipe& recipe);

/// Error{checkpoint} when a checkpoint in `path` with the frozen weights `saved` cannot go on, or
/// be exported, with those of `found`.
void check_base(const std::filesystem::path& path, const std::string& saved,
                const std::string& found);

}  // namespace dstrain
