#include "engine/train/session/reference_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "engine/base/error.h"
#include "engine/base/input_file.h"
#include "engine/data/text/file_stamp.h"
#include "engine/data/text/hash.h"
#include "engine/data/text/source_files.h"
#include "engine/data/text/token_cache.h"
#include "engine/recipe/load.h"
#include "engine/weights/safetensors.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

/// Raised whenever the same weights and pairs give other numbers, or the file another layout.
constexpr int kFormat = 1;
constexpr const char* kTensor = "logps";  // [pairs, 2]: chosen, rejected
constexpr const char* kHash = "xxh3-128";

std::string hash_of(std::span<const float> values) {
  const auto bytes = std::as_bytes(values);
  return text::hash128({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

}  // namespace

std::string start_key(const Recipe& recipe) {
  const fs::path memory = text::make_cache_folder(recipe.data);
  std::string key = fmt::format("{}\n", kFormat);
  for (const std::string& folder : {recipe.model.weights, recipe.lora.weights}) {
    key += "folder\n";
    if (folder.empty()) continue;
    for (const char* extension : {".json", ".safetensors", ".bin"})
      for (const fs::path& file : text::list_files(folder, "", extension))
        key += fmt::format("{} {}\n", file.filename().string(), text::content_hash(file, memory));
  }
  Recipe start;  // what decides the first weights, and what is computed with them
  start.model = recipe.model;
  start.model.weights.clear();
  start.model.frozen.clear();
  start.lora = recipe.lora;
  start.lora.weights.clear();
  start.lora.also_train.clear();
  start.lora.dropout = 0;
  start.lora.lr_ratio = 1;
  start.experts = recipe.experts;
  start.precision.compute = recipe.precision.compute;
  start.run.seed = recipe.run.seed;
  start.data.sequence = recipe.data.sequence;
  return text::hash128(key + resolved_yaml({.recipe = start}));
}

fs::path reference_file(const DataConfig& data, const std::string& pairs_key,
                        const std::string& start_key) {
  return text::make_cache_folder(data) /
         fmt::format("reference-{}.safetensors", text::hash128(pairs_key + start_key));
}

std::optional<std::vector<float>> read_references(const fs::path& path, std::int64_t pairs,
                                                  std::string& problem) {
  problem.clear();
  if (!path_exists(path)) return std::nullopt;
  try {
    const SafetensorsFile file(path);
    const auto entry = file.entries().find(kTensor);
    const auto hash = file.metadata().find(kHash);
    if (entry == file.entries().end() || hash == file.metadata().end() ||
        entry->second.shape != std::vector<std::int64_t>{pairs, 2}) {
      problem = "it has other tensors";
      return std::nullopt;
    }
    std::vector<float> values(static_cast<std::size_t>(2 * pairs));
    file.read(kTensor, 0, values);
    if (hash_of(values) == hash->second) return values;
    problem = "its numbers are damaged";
  } catch (const Error& error) {
    problem = error.what();
  }
  return std::nullopt;
}

void write_references(const fs::path& path, const std::vector<float>& references) {
  write_safetensors(path,
                    {{.name = kTensor,
                      .shape = {static_cast<std::int64_t>(references.size() / 2), 2},
                      .values = references}},
                    {{kHash, hash_of(references)}});
}

}  // namespace dstrain
