#include "engine/models/vit/names.h"

#include <array>
#include <nlohmann/json.hpp>
#include <utility>

namespace dstrain {
namespace {

constexpr std::string_view kVitPrefix = "vit.";

/// transformers 4 and all files so far -> transformers 5 in memory, for what follows the layer's
/// number.
constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kLaterVitNames = {{
    {"attention.attention.query", "attention.q_proj"},
    {"attention.attention.key", "attention.k_proj"},
    {"attention.attention.value", "attention.v_proj"},
    {"attention.output.dense", "attention.o_proj"},
    {"intermediate.dense", "mlp.fc1"},
    {"output.dense", "mlp.fc2"},
}};

nlohmann::json vit_fields(const VitConfig& config) {
  return {
      {"encoder_stride", config.patch_size},
      {"initializer_range", config.init_std},
      {"qkv_bias", true},
  };
}

}  // namespace

VitNames vit_names(std::string_view prefix) {
  const std::string root(prefix);
  return {
      .stem = root + "embeddings",
      .first_tokens = {root + "embeddings.cls_token"},
      .positions = root + "embeddings.position_embeddings",
      .projection = root + "embeddings.patch_embeddings.projection",
      .layer = root + "encoder.layer.",
      .qkv = {"attention.attention.query", "attention.attention.key", "attention.attention.value"},
      .output = "attention.output.dense",
      .norm_before = "layernorm_before",
      .norm_after = "layernorm_after",
      .up = "intermediate.dense",
      .down = "output.dense",
      .last_norm = root + "layernorm"};
}

std::string later_vit_name(const std::string& name, std::string_view prefix) {
  const std::string layer = std::string(prefix) + "encoder.layer.";
  if (!name.starts_with(layer)) return name;
  const std::string numbered = name.substr(layer.size());  // "0.attention.output.dense.weight"
  const auto dot = numbered.find('.') + 1;
  std::string rest = numbered.substr(dot);
  for (const auto& [earlier, later] : kLaterVitNames) {
    if (!rest.starts_with(earlier)) continue;
    rest = std::string(later) + rest.substr(earlier.size());
    break;
  }
  return std::string(prefix) + "layers." + numbered.substr(0, dot) + rest;
}

std::vector<std::string> names_in_files(const std::string& name, const std::string& later,
                                        std::string_view prefix) {
  std::vector<std::string> names = {name};
  if (later != name) names.push_back(later);
  if (name.starts_with(prefix)) {
    for (std::size_t i = names.size(); i-- > 0;) names.push_back(names[i].substr(prefix.size()));
  }
  return names;
}

std::vector<std::string> vit_file_names(const std::string& name) {
  return names_in_files(name, vit_memory_name(name), kVitPrefix);
}

std::string vit_memory_name(const std::string& name) { return later_vit_name(name, kVitPrefix); }

const VitKind kVit = {.model_class = "ViTForImageClassification",
                      .names = vit_names(kVitPrefix),
                      .dropouts = {"attention_probs_dropout_prob", "hidden_dropout_prob"},
                      .fields = vit_fields};

}  // namespace dstrain
