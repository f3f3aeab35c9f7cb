#include "engine/models/gpt_neox/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/base/json.h"
#include "engine/models/config_sizes.h"
#include "engine/recipe/config_file.h"

namespace dstrain {
namespace {

constexpr double kMaxTheta = 1e12;
constexpr std::int64_t kPositions = 2048;  ///< of all published Pythias

/// transformers 4 has the base and share of the positions by themselves, transformers 5 in
/// rope_parameters.
void read_rope(ConfigFile& file, GptNeoxConfig& config) {
  config.rope_theta = file.number_within("rotary_emb_base", 1, kMaxTheta, config.rope_theta);
  config.rotary_share = file.number_within("rotary_pct", 1e-3, 1, config.rotary_share);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!file.has(key)) continue;
    const nlohmann::json& rope = file.json().at(key);
    const auto number = [&](const char* name, double otherwise, double min, double max) {
      const nlohmann::json found = rope.value(name, nlohmann::json(otherwise));
      if (found.is_number() && found >= min && found <= max) return found.get<double>();
      file.refuse(key, fmt::format("with a {} from {} to {}", name, min, max));
      return otherwise;
    };
    if (!rope.is_object() ||
        rope.value("rope_type", rope.value("type", nlohmann::json("default"))) != "default") {
      file.refuse(key, "null, or of rope_type \"default\"");
      continue;
    }
    config.rope_theta = number("rope_theta", config.rope_theta, 1, kMaxTheta);
    config.rotary_share = number("partial_rotary_factor", config.rotary_share, 1e-3, 1);
  }
}

void read_gelu(ConfigFile& file, GptNeoxConfig& config) {
  const std::string name = file.text("hidden_act", "gelu");
  const auto is_tanh = {"gelu_fast", "gelu_new", "gelu_pytorch_tanh"};
  if (std::ranges::find(is_tanh, name) != is_tanh.end()) {
    config.gelu = ops::Gelu::tanh;
  } else if (name != "gelu") {
    file.refuse("hidden_act", "\"gelu\", \"gelu_fast\", \"gelu_new\" or \"gelu_pytorch_tanh\"");
  }
}

/// Reads the fields of config.json that change the result.
GptNeoxConfig read_gpt_neox_config(const std::filesystem::path& weights,
                                   const ModelFamily& family) {
  ConfigFile file(weights, std::string(family.name));
  GptNeoxConfig config;
  static_cast<ModelSizes&>(config) = read_sizes(file, family);
  read_rope(file, config);
  read_gelu(file, config);
  config.norm_eps = file.number_within("layer_norm_eps", 0, 1, config.norm_eps);
  config.init_std = file.number_within("initializer_range", 0, 100, config.init_std);
  config.parallel = file.flag("use_parallel_residual", true);
  config.attention_bias = file.flag("attention_bias", true);
  config.tied = file.flag("tie_word_embeddings", false);
  note_dropouts(file, {"hidden_dropout", "attention_dropout"}, family, config.notes);
  file.raise();
  config.file = json_text(file.json());
  return config;
}

}  // namespace

GptNeoxConfig gpt_neox_config(const ModelConfig& recipe, const ModelFamily& family) {
  Problems problems = foreign_key_problems(recipe, family);
  raise_problems(ErrorKind::usage, problems, "leave it out of the recipe");
  GptNeoxConfig config;
  if (recipe.weights.empty()) {
    static_cast<ModelSizes&>(config) = named_sizes(recipe, family);
    if (recipe.rope_theta != 0) config.rope_theta = recipe.rope_theta;
  } else {
    config = read_gpt_neox_config(recipe.weights, family);
    compare_sizes(recipe, family, config, problems);
    if (recipe.rope_theta != 0 && recipe.rope_theta != config.rope_theta)
      problems.push_back(fmt::format(
          "model.rope_theta: {} in the recipe, but {} has rotary_emb_base {}", recipe.rope_theta,
          (std::filesystem::path(recipe.weights) / "config.json").string(), config.rope_theta));
  }
  if (!(config.rope_theta >= 1 && config.rope_theta <= kMaxTheta))
    problems.push_back(
        fmt::format("model.rope_theta: {} is not between 1 and {}", config.rope_theta, kMaxTheta));
  check_limits(family, config, problems);
  if (problems.empty()) check_multiple("width", config.width, "heads", config.heads, problems);
  if (problems.empty()) {
    config.kv_heads = config.heads;
    config.head_dim = config.width / config.heads;
    if (config.rotary() < 2 || config.rotary() % 2 != 0)
      problems.push_back(fmt::format(
          "model.width: {} / model.heads ({}) is {}, of which {} elements turn (rotary_pct {}), "
          "but "
          "rotary positions need an even number",
          config.width, config.heads, config.head_dim, config.rotary(), config.rotary_share));
  }
  raise_size_problems(recipe, problems);
  return config;
}

std::string gpt_neox_config_json(const GptNeoxConfig& config, const ModelFamily& family) {
  nlohmann::json json = {
      {"model_type", family.name},
      {"attention_bias", config.attention_bias},
      {"attention_dropout", 0.0},
      {"bos_token_id", 0},
      {"eos_token_id", 0},
      {"hidden_act", config.gelu == ops::Gelu::erf ? "gelu" : "gelu_new"},
      {"hidden_dropout", 0.0},
      {"initializer_range", config.init_std},
      {"layer_norm_eps", config.norm_eps},
      {"max_position_embeddings", std::max(kPositions, config.sequence)},
      {"rotary_emb_base", config.rope_theta},
      {"rotary_pct", config.rotary_share},
      {"tie_word_embeddings", config.tied},
      {"use_cache", true},
      {"use_parallel_residual", config.parallel},
  };
  // What the file says beside sizes (tokens, labels of other tasks) goes on unchanged.
  if (!config.file.empty()) json = parse_json(config.file, "config.json");
  json["architectures"] = {"GPTNeoXForCausalLM"};
  write_sizes(family, config, json);
  return json_text(json, 2) + "\n";
}

}  // namespace dstrain
