#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/recipe/recipe.h"

/// Log-probabilities of pairs of answers in the weights that a run starts from, kept beside the
/// tokens.
namespace dstrain {

/// Tells what `recipe` starts from, and in which type it computes, from anything else: content of
/// the files of model.weights and lora.weights, sizes, seed. Files are read once (content_hash).
[[nodiscard]] std::string start_key(const Recipe& recipe);

/// data.cache's file of the pairs `pairs_key` in the start `start_key`.
[[nodiscard]] std::filesystem::path reference_file(const DataConfig& data,
                                                   const std::string& pairs_key,
                                                   const std::string& start_key);

/// Two numbers for each of `pairs` pairs; nothing where there is no such file. `problem` says why
/// one cannot be used.
[[nodiscard]] std::optional<std::vector<float>> read_references(const std::filesystem::path& file,
                                                                std::int64_t pairs,
                                                                std::string& problem);
void write_references(const std::filesystem::path& file, const std::vector<float>& references);

}  // namespace dstrain
