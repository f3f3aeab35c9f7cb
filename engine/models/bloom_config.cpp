#include "engine/models/bloom_config.h"

#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

#include "engine/base/json.h"
#include "engine/models/config_sizes.h"
#include "recipes/schema/config_file.h"

namespace dstrain {
namespace {

constexpr std::array<Size<BloomConfig>, 4> kBloomFields = {{
    {model_size(ModelFamily::bloom, "width"), &BloomConfig::width},
    {model_size(ModelFamily::bloom, "layers"), &BloomConfig::layers},
    {model_size(ModelFamily::bloom, "heads"), &BloomConfig::heads},
    {model_size(ModelFamily::bloom, "vocab_size"), &BloomConfig::vocab_size},
}};
constexpr std::span<const Size<BloomConfig>> kAllBloomFields = kBloomFields;

/// Reads the fields of config.json that change the result; the rest (precision of the softmax, ways
/// of computing the same) is left alone.
BloomConfig read_bloom_config(const std::filesystem::path& weights) {
  ConfigFile file(weights, "bloom");
  BloomConfig config;
  read_sizes(file, kAllBloomFields, config);
  config.norm_eps = file.number_within("layer_norm_epsilon", 0, 1, config.norm_eps);
  config.init_std = file.number_within("initializer_range", 0, 100, config.init_std);
  config.tied = file.flag("tie_word_embeddings", true);
  if (file.flag("apply_residual_connection_post_layernorm", false)) {
    file.refuse("apply_residual_connection_post_layernorm",
                "false; dstrain takes the residual before the layer norm");
  }
  for (const char* key : {"hidden_dropout", "attention_dropout"}) {
    if (file.number(key, 0) == 0) continue;
    config.notes.push_back(fmt::format("{}: {} is {}; dstrain trains BLOOM without dropout",
                                       file.path().string(), key, shown_json(file.json().at(key))));
  }
  file.raise();
  config.file = json_text(file.json());
  return config;
}

}  // namespace

std::optional<BloomConfig> bloom_named(std::string name) {
  constexpr std::string_view kOwner = "bigscience/";
  if (name.starts_with(kOwner)) name = name.substr(kOwner.size());
  struct Named {
    std::string_view name;
    std::int64_t width, layers, heads;
  };
  constexpr std::array<Named, 5> kPublished = {{{"bloom-560m", 1024, 24, 16},
                                                {"bloom-1b1", 1536, 24, 16},
                                                {"bloom-1b7", 2048, 24, 16},
                                                {"bloom-3b", 2560, 30, 32},
                                                {"bloom-7b1", 4096, 30, 32}}};
  for (const Named& one : kPublished) {
    if (one.name != name) continue;
    BloomConfig config;
    config.width = one.width, config.layers = one.layers, config.heads = one.heads;
    config.vocab_size = 250880;
    return config;
  }
  return std::nullopt;
}

BloomConfig bloom_config(const ModelConfig& recipe) {
  Problems problems = foreign_keys(recipe, "BLOOM", {"vocab_size"});
  raise_problems(ErrorKind::usage, problems,
                 "leave it out of the recipe; the MLP of BLOOM is 4 times as wide as the model");
  const std::optional<BloomConfig> named = bloom_named(recipe.name);
  const bool from_file = !recipe.weights.empty();
  BloomConfig config =
      from_file ? read_bloom_config(recipe.weights) : named.value_or(BloomConfig{});
  if (from_file) {
    compare_sizes(recipe, named, kAllBloomFields, config, problems);
  } else {
    override_sizes(recipe, kAllBloomFields, config);
  }
  check_limits(kAllBloomFields, config, problems);
  if (problems.empty()) check_multiple("width", config.width, "heads", config.heads, problems);
  raise_problems(ErrorKind::usage, problems,
                 from_file ? "leave the sizes out of the recipe: the weights have their own"
                           : "change the sizes under model");
  return config;
}

std::string bloom_config_json(const BloomConfig& config) {
  nlohmann::json json = {
      {"model_type", "bloom"},
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
  for (const Size<BloomConfig>& size : kBloomFields)
    json[size.model.file_keys[0]] = config.*size.size;
  return json_text(json, 2) + "\n";
}

std::vector<std::string> bloom_file_names(const std::string& name) {
  constexpr std::string_view kPrefix = "transformer.";
  if (!name.starts_with(kPrefix)) return {name};
  return {name, name.substr(kPrefix.size())};
}

}  // namespace dstrain
