#include "engine/models/gpt2/config.h"

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/base/json.h"
#include "engine/models/config_sizes.h"
#include "engine/recipe/config_file.h"

namespace dstrain {
namespace {

constexpr std::int64_t kMaxPositions = 1 << 20;

void read_gelu(ConfigFile& file, Gpt2Config& config) {
  const std::string name = file.text("activation_function", "gelu_new");
  if (name == "gelu") {
    config.gelu = ops::Gelu::erf;
  } else if (name != "gelu_new" && name != "gelu_fast" && name != "gelu_pytorch_tanh") {
    file.refuse("activation_function",
                "\"gelu_new\", \"gelu_fast\", \"gelu_pytorch_tanh\" or \"gelu\"");
  }
}

/// Reads the fields of config.json that change the result; the rest (another order of the same
/// products, as reorder_and_upcast_attn asks for) is left alone.
Gpt2Config read_gpt2_config(const std::filesystem::path& weights, const ModelFamily& family) {
  ConfigFile file(weights, std::string(family.name));
  Gpt2Config config;
  static_cast<ModelSizes&>(config) = read_sizes(file, family);
  if (config.mlp_width == 0) config.mlp_width = 4 * config.width;
  const char* positions = file.has("n_positions") ? "n_positions" : "max_position_embeddings";
  config.positions = file.size(positions, kMaxPositions, config.positions);
  read_gelu(file, config);
  config.norm_eps = file.number_within("layer_norm_epsilon", 0, 1, config.norm_eps);
  config.init_std = file.number_within("initializer_range", 0, 100, config.init_std);
  config.scale_scores = file.flag("scale_attn_weights", true);
  config.scale_scores_by_layer = file.flag("scale_attn_by_inverse_layer_idx", false);
  config.tied = file.flag("tie_word_embeddings", true);
  if (file.flag("add_cross_attention", false))
    file.refuse("add_cross_attention", "false; dstrain has no encoder to attend to");
  note_dropouts(file, {"attn_pdrop", "embd_pdrop", "resid_pdrop"}, family, config.notes);
  file.raise();
  config.file = json_text(file.json());
  return config;
}

}  // namespace

double Gpt2Config::score_scale(std::int64_t index) const {
  const double scale = scale_scores ? 1 / std::sqrt(static_cast<double>(head_dim)) : 1;
  return scale_scores_by_layer ? scale / static_cast<double>(index + 1) : scale;
}

Gpt2Config gpt2_config(const ModelConfig& recipe, const ModelFamily& family) {
  Problems problems = foreign_key_problems(recipe, family);
  raise_problems(ErrorKind::usage, problems, "leave it out of the recipe");
  Gpt2Config config;
  if (recipe.weights.empty()) {
    static_cast<ModelSizes&>(config) = named_sizes(recipe, family);
  } else {
    config = read_gpt2_config(recipe.weights, family);
    compare_sizes(recipe, family, config, problems);
  }
  check_limits(family, config, problems);
  if (problems.empty()) check_multiple("width", config.width, "heads", config.heads, problems);
  raise_size_problems(recipe, problems);
  if (config.mlp_width == 0) config.mlp_width = 4 * config.width;
  config.kv_heads = config.heads;
  config.head_dim = config.width / config.heads;
  return config;
}

std::string gpt2_config_json(const Gpt2Config& config, const ModelFamily& family) {
  const std::int64_t end = config.vocab_size - 1;  // <|endoftext|> is the last token
  nlohmann::json json = {
      {"model_type", family.name},
      {"activation_function", config.gelu == ops::Gelu::erf ? "gelu" : "gelu_new"},
      {"attn_pdrop", 0.0},
      {"bos_token_id", end},
      {"embd_pdrop", 0.0},
      {"eos_token_id", end},
      {"initializer_range", config.init_std},
      {"layer_norm_epsilon", config.norm_eps},
      {"n_positions", config.positions},
      {"resid_pdrop", 0.0},
      {"scale_attn_by_inverse_layer_idx", config.scale_scores_by_layer},
      {"scale_attn_weights", config.scale_scores},
      {"tie_word_embeddings", config.tied},
      {"use_cache", true},
  };
  // What the file says beside sizes (tokens, labels of other tasks) goes on unchanged.
  if (!config.file.empty()) json = parse_json(config.file, "config.json");
  json["architectures"] = {"GPT2LMHeadModel"};
  write_sizes(family, config, json);
  return json_text(json, 2) + "\n";
}

}  // namespace dstrain
