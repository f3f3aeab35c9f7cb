#include "engine/models/qwen2_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

#include "engine/base/json.h"
#include "engine/models/config_sizes.h"
#include "recipes/schema/config_file.h"

namespace dstrain {
namespace {

constexpr std::array<Size<Qwen2Config>, 6> kQwen2Fields = {{
    {model_size(ModelFamily::qwen2, "width"), &Qwen2Config::width},
    {model_size(ModelFamily::qwen2, "layers"), &Qwen2Config::layers},
    {model_size(ModelFamily::qwen2, "heads"), &Qwen2Config::heads},
    {model_size(ModelFamily::qwen2, "kv_heads"), &Qwen2Config::kv_heads},
    {model_size(ModelFamily::qwen2, "mlp_width"), &Qwen2Config::mlp_width},
    {model_size(ModelFamily::qwen2, "vocab_size"), &Qwen2Config::vocab_size},
}};
constexpr std::span<const Size<Qwen2Config>> kAllQwen2Fields = kQwen2Fields;
constexpr double kLeastTheta = 1, kMostTheta = 1e12;

/// Base of the rotary positions; transformers 5 writes it into rope_parameters.
double read_rope(ConfigFile& file) {
  if (file.has("rope_scaling"))
    file.refuse("rope_scaling", "null; dstrain has no scaled rotary positions");
  double theta = file.number_within("rope_theta", kLeastTheta, kMostTheta, 10000);
  if (!file.has("rope_parameters")) return theta;
  const nlohmann::json& rope = file.json().at("rope_parameters");
  if (!rope.is_object() || rope.value("rope_type", nlohmann::json("default")) != "default") {
    file.refuse("rope_parameters",
                "of rope_type \"default\"; dstrain has no scaled rotary positions");
    return theta;
  }
  const nlohmann::json& found = rope.value("rope_theta", nlohmann::json(theta));
  if (found.is_number() && found >= kLeastTheta && found <= kMostTheta) return found.get<double>();
  file.refuse("rope_parameters",
              fmt::format("with a rope_theta from {} to {}", kLeastTheta, kMostTheta));
  return theta;
}

/// Reads the fields of config.json that change the result.
Qwen2Config read_qwen2_config(const std::filesystem::path& weights) {
  ConfigFile file(weights, "qwen2");
  Qwen2Config config;
  read_sizes(file, kAllQwen2Fields, config);
  config.rope_theta = read_rope(file);
  config.norm_eps = file.number_within("rms_norm_eps", 0, 1, config.norm_eps);
  config.init_std = file.number_within("initializer_range", 0, 100, config.init_std);
  config.tied = file.flag("tie_word_embeddings", false);
  if (file.text("hidden_act", "silu") != "silu")
    file.refuse("hidden_act", "\"silu\", the only activation that dstrain has for Qwen2");
  if (file.flag("use_sliding_window", false))
    file.refuse("use_sliding_window", "false; dstrain attends to all earlier tokens");
  if (file.has("head_dim") && config.heads > 0 &&
      file.json().at("head_dim") != config.width / config.heads) {
    file.refuse("head_dim", "hidden_size / num_attention_heads");
  }
  if (file.number("attention_dropout", 0) != 0) {
    config.notes.push_back(
        fmt::format("{}: attention_dropout is {}; dstrain trains Qwen2 without dropout",
                    file.path().string(), shown_json(file.json().at("attention_dropout"))));
  }
  file.raise();
  config.file = json_text(file.json());
  return config;
}

void choose_theta(const ModelConfig& recipe, Qwen2Config& config, Problems& problems) {
  if (recipe.rope_theta == 0) return;
  if (recipe.weights.empty()) config.rope_theta = recipe.rope_theta;
  if (recipe.rope_theta != config.rope_theta) {
    problems.push_back(fmt::format(
        "model.rope_theta: {} in the recipe, but {} has rope_theta {}", recipe.rope_theta,
        (std::filesystem::path(recipe.weights) / "config.json").string(), config.rope_theta));
  }
  if (!(config.rope_theta >= kLeastTheta && config.rope_theta <= kMostTheta)) {
    problems.push_back(fmt::format("model.rope_theta: {} is not between {} and {}",
                                   config.rope_theta, kLeastTheta, kMostTheta));
  }
}

void check_sizes(const Qwen2Config& config, Problems& problems) {
  check_limits(kAllQwen2Fields, config, problems);
  if (!problems.empty()) return;
  check_multiple("width", config.width, "heads", config.heads, problems);
  check_multiple("heads", config.heads, "kv_heads", config.kv_heads, problems);
  if (problems.empty() && config.head_dim() % 2 != 0) {
    problems.push_back(
        fmt::format("model.width: {} / model.heads ({}) is {}, but rotary positions need an even "
                    "number",
                    config.width, config.heads, config.head_dim()));
  }
}

}  // namespace

std::optional<Qwen2Config> qwen2_named(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  constexpr std::string_view kOwner = "qwen/", kTuned = "-instruct";
  if (name.starts_with(kOwner)) name = name.substr(kOwner.size());
  if (name.ends_with(kTuned)) name.resize(name.size() - kTuned.size());
  struct Named {
    std::string_view name;
    std::int64_t width, layers, heads, kv_heads, mlp_width, vocab_size;
    bool tied;
  };
  constexpr std::array<Named, 4> kPublished = {
      {{"qwen2.5-0.5b", 896, 24, 14, 2, 4864, 151936, true},
       {"qwen2.5-1.5b", 1536, 28, 12, 2, 8960, 151936, true},
       {"qwen2.5-3b", 2048, 36, 16, 2, 11008, 151936, true},
       {"qwen2.5-7b", 3584, 28, 28, 4, 18944, 152064, false}}};
  for (const Named& one : kPublished) {
    if (one.name != name) continue;
    Qwen2Config config;
    config.width = one.width, config.layers = one.layers, config.heads = one.heads;
    config.kv_heads = one.kv_heads, config.mlp_width = one.mlp_width;
    config.vocab_size = one.vocab_size, config.tied = one.tied;
    return config;
  }
  return std::nullopt;
}

Qwen2Config qwen2_config(const ModelConfig& recipe) {
  Problems problems =
      foreign_keys(recipe, "Qwen2.5", {"mlp_width", "kv_heads", "vocab_size", "rope_theta"});
  raise_problems(ErrorKind::usage, problems, "leave it out of the recipe");
  const std::optional<Qwen2Config> named = qwen2_named(recipe.name);
  const bool from_file = !recipe.weights.empty();
  Qwen2Config config =
      from_file ? read_qwen2_config(recipe.weights) : named.value_or(Qwen2Config{});
  if (from_file) {
    compare_sizes(recipe, named, kAllQwen2Fields, config, problems);
  } else {
    override_sizes(recipe, kAllQwen2Fields, config);
  }
  choose_theta(recipe, config, problems);
  check_sizes(config, problems);
  raise_problems(ErrorKind::usage, problems,
                 from_file ? "leave the sizes out of the recipe: the weights have their own"
                           : "change the sizes under model");
  return config;
}

std::string qwen2_config_json(const Qwen2Config& config) {
  nlohmann::json json = {
      {"model_type", "qwen2"},
      {"attention_dropout", 0.0},
      {"bos_token_id", 151643},
      {"eos_token_id", 151643},
      {"hidden_act", "silu"},
      {"initializer_range", config.init_std},
      {"max_position_embeddings", std::max<std::int64_t>(32768, config.sequence)},
      {"max_window_layers", config.layers},
      {"rms_norm_eps", config.norm_eps},
      {"rope_theta", config.rope_theta},
      {"tie_word_embeddings", config.tied},
      {"use_cache", true},
      {"use_sliding_window", false},
  };
  // What the file says beside sizes (tokens, positions) goes on unchanged.
  if (!config.file.empty()) json = parse_json(config.file, "config.json");
  json["architectures"] = {"Qwen2ForCausalLM"};
  for (const Size<Qwen2Config>& size : kQwen2Fields)
    json[size.model.file_keys[0]] = config.*size.size;
  return json_text(json, 2) + "\n";
}

std::vector<std::string> qwen2_file_names(const std::string& name) {
  constexpr std::string_view kPrefix = "model.";
  if (!name.starts_with(kPrefix)) return {name};
  return {name, name.substr(kPrefix.size())};
}

}  // namespace dstrain
