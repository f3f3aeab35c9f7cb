#include "engine/models/bloom/config.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/base/json.h"
#include "engine/models/config_sizes.h"
#include "engine/recipe/config_file.h"

namespace dstrain {
namespace {

/// Reads the fields of config.json that change the result; the rest (precision of the softmax, ways
/// of computing the same) is left alone.
BloomConfig read_bloom_config(const std::filesystem::path& weights, const ModelFamily& family) {
  ConfigFile file(weights, std::string(family.name));
  BloomConfig config;
  static_cast<ModelSizes&>(config) = read_sizes(file, family);
  config.norm_eps = file.number_within("layer_norm_epsilon", 0, 1, config.norm_eps);
  config.init_std = file.number_within("initializer_range", 0, 100, config.init_std);
  config.tied = file.flag("tie_word_embeddings", true);
  if (file.flag("apply_residual_connection_post_layernorm", false)) {
    file.refuse("apply_residual_connection_post_layernorm",
                "false; dstrain takes the residual before the layer norm");
  }
  note_dropouts(file, {"hidden_dropout", "attention_dropout"}, family, config.notes);
  file.raise();
  config.file = json_text(file.json());
  return config;
}

}  // namespace

BloomConfig bloom_config(const ModelConfig& recipe, const ModelFamily& family) {
  Problems problems = foreign_key_problems(recipe, family);
  raise_problems(ErrorKind::usage, problems,
                 "leave it out of the recipe; the MLP of BLOOM is 4 times as wide as the model");
  BloomConfig config;
  if (recipe.weights.empty()) {
    static_cast<ModelSizes&>(config) = named_sizes(recipe, family);
  } else {
    config = read_bloom_config(recipe.weights, family);
    compare_sizes(recipe, family, config, problems);
  }
  check_limits(family, config, problems);
  if (problems.empty()) check_multiple("width", config.width, "heads", config.heads, problems);
  raise_size_problems(recipe, problems);
  config.kv_heads = config.heads;
  config.head_dim = config.width / config.heads;
  config.mlp_width = 4 * config.width;
  return config;
}

std::string bloom_config_json(const BloomConfig& config, const ModelFamily& family) {
  nlohmann::json json = {
      {"model_type", family.name},
      {"apply_residual_connection_post_layernorm", false},
      {"attention_dropout", 0.0},
      {"bos_token_id", 1},
      {"eos_token_id", 2},
      {"hidden_dropout", 0.0},
      {"initializer_range", config.init_std},
      {"layer_norm_epsilon", config.norm_eps},
      {"pad_token_id", 3},
      {"tie_word_embeddings", config.tied},
      {"use_cache", true},
  };
  // What the file says beside sizes (tokens, labels of other tasks) goes on unchanged.
  if (!config.file.empty()) json = parse_json(config.file, "config.json");
  json["architectures"] = {"BloomForCausalLM"};
  write_sizes(family, config, json);
  return json_text(json, 2) + "\n";
}

}  // namespace dstrain
