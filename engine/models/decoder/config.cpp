#include "engine/models/decoder/config.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/base/json.h"
#include "engine/models/config_sizes.h"

namespace dstrain {
namespace {

constexpr double kMinTheta = 1, kMaxTheta = 1e12;

/// Base of the rotary positions; transformers 5 writes it into rope_parameters.
double read_rope(ConfigFile& file, double otherwise) {
  if (file.has("rope_scaling"))
    file.refuse("rope_scaling", "null; dstrain has no scaled rotary positions");
  double theta = file.number_within("rope_theta", kMinTheta, kMaxTheta, otherwise);
  if (!file.has("rope_parameters")) return theta;
  const nlohmann::json& rope = file.json().at("rope_parameters");
  if (!rope.is_object() || rope.value("rope_type", nlohmann::json("default")) != "default") {
    file.refuse("rope_parameters",
                "of rope_type \"default\"; dstrain has no scaled rotary positions");
    return theta;
  }
  const nlohmann::json& found = rope.value("rope_theta", nlohmann::json(theta));
  if (found.is_number() && found >= kMinTheta && found <= kMaxTheta) return found.get<double>();
  file.refuse("rope_parameters",
              fmt::format("with a rope_theta from {} to {}", kMinTheta, kMaxTheta));
  return theta;
}

/// Reads the fields of config.json that change the result.
DecoderConfig read_decoder_config(const std::filesystem::path& weights, const ModelFamily& family,
                                  const DecoderKind& kind) {
  ConfigFile file(weights, std::string(family.name));
  DecoderConfig config;
  static_cast<ModelSizes&>(config) = read_sizes(file, family);
  config.qkv_bias = kind.published.qkv_bias;
  config.rope_theta = read_rope(file, config.rope_theta);
  config.norm_eps = file.number_within("rms_norm_eps", 0, 1, config.norm_eps);
  config.init_std = file.number_within("initializer_range", 0, 100, config.init_std);
  config.tied = file.flag("tie_word_embeddings", false);
  if (file.text("hidden_act", "silu") != "silu") {
    file.refuse("hidden_act",
                fmt::format("\"silu\", the only activation that dstrain has for {}", family.title));
  }
  kind.check(file, config);
  if (file.number("attention_dropout", 0) != 0) {
    config.notes.push_back(fmt::format(
        "{}: attention_dropout is {}; dstrain trains {} without "
        "dropout",
        file.path().string(), shown_json(file.json().at("attention_dropout")), family.title));
  }
  file.raise();
  config.file = json_text(file.json());
  return config;
}

void choose_theta(const ModelConfig& recipe, DecoderConfig& config, Problems& problems) {
  if (recipe.rope_theta == 0) return;
  if (recipe.weights.empty()) config.rope_theta = recipe.rope_theta;
  if (recipe.rope_theta != config.rope_theta) {
    problems.push_back(fmt::format(
        "model.rope_theta: {} in the recipe, but {} has rope_theta {}", recipe.rope_theta,
        (std::filesystem::path(recipe.weights) / "config.json").string(), config.rope_theta));
  }
  if (!(config.rope_theta >= kMinTheta && config.rope_theta <= kMaxTheta)) {
    problems.push_back(fmt::format("model.rope_theta: {} is not between {} and {}",
                                   config.rope_theta, kMinTheta, kMaxTheta));
  }
}

void check_heads(const DecoderConfig& config, Problems& problems) {
  check_multiple("width", config.width, "heads", config.heads, problems);
  check_multiple("heads", config.heads, "kv_heads", config.kv_heads, problems);
  const std::int64_t head_dim = config.width / config.heads;
  if (problems.empty() && head_dim % 2 != 0) {
    problems.push_back(
        fmt::format("model.width: {} / model.heads ({}) is {}, but rotary positions need an even "
                    "number",
                    config.width, config.heads, head_dim));
  }
}

}  // namespace

DecoderConfig decoder_config(const ModelConfig& recipe, const ModelFamily& family,
                             const DecoderKind& kind) {
  Problems problems = foreign_keys(recipe, family);
  raise_problems(ErrorKind::usage, problems, "leave it out of the recipe");
  DecoderConfig config = kind.published;
  if (recipe.weights.empty()) {
    static_cast<ModelSizes&>(config) = named_sizes(recipe, family);
    if (const PublishedModel* model = published_model(recipe.name))
      kind.specialize(model->name, config);
  } else {
    config = read_decoder_config(recipe.weights, family, kind);
    compare_sizes(recipe, family, config, problems);
  }
  choose_theta(recipe, config, problems);
  check_limits(family, config, problems);
  if (problems.empty()) check_heads(config, problems);
  raise_size_problems(recipe, problems);
  config.head_dim = config.width / config.heads;
  return config;
}

std::string decoder_config_json(const DecoderConfig& config, const ModelFamily& family,
                                const DecoderKind& kind) {
  nlohmann::json json = kind.fields(config);
  json["model_type"] = family.name;
  json["attention_dropout"] = 0.0;
  json["hidden_act"] = "silu";
  json["initializer_range"] = config.init_std;
  json["rms_norm_eps"] = config.norm_eps;
  json["rope_theta"] = config.rope_theta;
  json["tie_word_embeddings"] = config.tied;
  json["use_cache"] = true;
  // What the file says beside sizes (tokens, positions) goes on unchanged.
  if (!config.file.empty()) json = parse_json(config.file, "config.json");
  json["architectures"] = {kind.model_class};
  write_sizes(family, config, json);
  return json_text(json, 2) + "\n";
}

}  // namespace dstrain
