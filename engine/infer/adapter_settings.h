#pragma once

#include <filesystem>
#include <functional>

#include "engine/models/model.h"
#include "engine/recipe/recipe.h"

namespace dstrain {

/// What the folder of a PEFT adapter says of itself, as add_adapters() and open_adapter() are asked
/// for it (`weights` is empty): its targets are the maps that it has matrices for, whatever choice
/// of modules and layers made them. Where embedding and head of `model` are one, so are they in it.
/// Error{usage} where `folder` is none, Error{data} where its files are broken or of another kind.
[[nodiscard]] LoraConfig adapter_settings(const std::filesystem::path& folder, const Model& model);

/// Runs `open`, which reads the adapter in `folder` for a model. Its errors are those of the
/// adapter's files here: Error{data} in their words, with the base that they name.
void read_adapter(const std::filesystem::path& folder, const std::function<void()>& open);

}  // namespace dstrain
