#include "engine/models/decoder/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/base/json.h"
#include "engine/models/config_sizes.h"

namespace dstrain {
namespace {

constexpr double kMinTheta = 1, kMaxTheta = 1e12;

constexpr const char* kScalings = "null, or of rope_type \"default\" or \"llama3\"";
constexpr const char* kLongScalings = "null, or of rope_type \"default\" or \"longrope\"";

/// A number of the object `rope`, the field `key` of the file.
double rope_number(ConfigFile& file, const char* key, const nlohmann::json& rope, const char* name,
                   double otherwise, double min, double max) {
  const nlohmann::json& found = rope.value(name, nlohmann::json(otherwise));
  if (found.is_number() && found >= min && found <= max) return found.get<double>();
  file.refuse(key, fmt::format("with a {} from {} to {}", name, min, max));
  return otherwise;
}

/// One divisor for each pair of elements that turns.
std::vector<double> read_divisors(ConfigFile& file, const char* key, const nlohmann::json& rope,
                                  const char* name, std::int64_t pairs) {
  const nlohmann::json& found = rope.value(name, nlohmann::json());
  const auto fits = [](const nlohmann::json& x) { return x.is_number() && x > 0 && x <= 1e6; };
  if (found.is_array() && std::ssize(found) == pairs && std::ranges::all_of(found, fits))
    return found.get<std::vector<double>>();
  file.refuse(key, fmt::format("with a {} of {} numbers above 0", name, pairs));
  return {};
}

/// LongRoPE as transformers has it: the original length stands beside rope_scaling or in it, and
/// the factor follows from the two lengths.
void read_longrope(ConfigFile& file, const char* key, const nlohmann::json& rope,
                   DecoderConfig& config) {
  constexpr double kMax = 1 << 30;
  const std::int64_t pairs = config.rotary() / 2;
  ops::RopeScaling& scaling = config.rope_scaling;
  scaling.short_divisors = read_divisors(file, key, rope, "short_factor", pairs);
  scaling.long_divisors = read_divisors(file, key, rope, "long_factor", pairs);
  const double longest = file.number_within("max_position_embeddings", 1, kMax, 4096);
  const char* original = "original_max_position_embeddings";
  scaling.positions = file.has(original) ? file.number_within(original, 2, kMax, longest)
                                         : rope_number(file, key, rope, original, longest, 2, kMax);
  const double factor =
      rope_number(file, key, rope, "factor", longest / scaling.positions, 1e-3, kMax);
  const double usual =
      factor <= 1 ? 1 : std::sqrt(1 + std::log(factor) / std::log(scaling.positions));
  scaling.amplitude = rope_number(file, key, rope, "attention_factor", usual, 1e-3, 1e3);
  config.notes.push_back(fmt::format(
      "{}: samples of up to {:.0f} tokens turn by the short factors of longrope, longer ones and "
      "answers with more room by the long ones",
      file.path().string(), scaling.positions));
}

void read_scaling(ConfigFile& file, const char* key, const nlohmann::json& rope,
                  const DecoderKind& kind, DecoderConfig& config) {
  ops::RopeScaling& scaling = config.rope_scaling;
  // Earlier files say type.
  const nlohmann::json type =
      rope.value("rope_type", rope.value("type", nlohmann::json("default")));
  if (!kind.longrope && rope.value("partial_rotary_factor", nlohmann::json(1)) != 1)
    file.refuse(key, "without a partial_rotary_factor; dstrain turns all of a head");
  if (type == "default") return;
  if (kind.longrope) {
    if (type == "longrope" || type == "su") return read_longrope(file, key, rope, config);
    return file.refuse(key, kLongScalings);
  }
  if (type != "llama3") return file.refuse(key, kScalings);
  constexpr double kMax = 1 << 24;
  scaling.factor = rope_number(file, key, rope, "factor", 0, 1, kMax);
  scaling.low_factor = rope_number(file, key, rope, "low_freq_factor", 0, 1e-3, kMax);
  scaling.high_factor = rope_number(file, key, rope, "high_freq_factor", 0, 1e-3, kMax);
  scaling.positions =
      rope_number(file, key, rope, "original_max_position_embeddings", 0, 1, 1 << 30);
  if (scaling.high_factor <= scaling.low_factor)
    file.refuse(key, "with a high_freq_factor above low_freq_factor");
}

/// Base and scaling of the rotary positions; transformers 5 writes both into rope_parameters.
void read_rope(ConfigFile& file, const DecoderKind& kind, DecoderConfig& config) {
  config.rope_theta = file.number_within("rope_theta", kMinTheta, kMaxTheta, config.rope_theta);
  if (kind.longrope) config.rotary_share = file.number_within("partial_rotary_factor", 1e-3, 1, 1);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!file.has(key)) continue;
    const nlohmann::json& rope = file.json().at(key);
    if (!rope.is_object()) {
      file.refuse(key, kind.longrope ? kLongScalings : kScalings);
      continue;
    }
    if (kind.longrope)
      config.rotary_share =
          rope_number(file, key, rope, "partial_rotary_factor", config.rotary_share, 1e-3, 1);
    read_scaling(file, key, rope, kind, config);
    config.rope_theta =
        rope_number(file, key, rope, "rope_theta", config.rope_theta, kMinTheta, kMaxTheta);
  }
}

constexpr const char* kGemmaActivation = "gelu_pytorch_tanh";

/// sliding_window and layer_types; files of before the latter have the period.
void read_layer_windows(ConfigFile& file, const DecoderKind& kind, DecoderConfig& config) {
  constexpr std::int64_t kMax = std::int64_t{1} << 40;
  const char* window = "sliding_window";
  config.window = file.size(window, kMax, kind.published.window);
  if (file.json().contains(window) && !file.has(window)) file.refuse(window, "a number of tokens");
  config.window_period = kind.published.window_period;
  if (kind.published.local_theta > 0)
    config.window_period = file.size("sliding_window_pattern", kMax, config.window_period);
  const char* key = "layer_types";
  if (!file.has(key)) return;
  const nlohmann::json& types = file.json().at(key);
  const auto is_known = [](const nlohmann::json& type) {
    return type == "sliding_attention" || type == "full_attention";
  };
  if (!types.is_array() || std::ssize(types) != config.layers ||
      !std::ranges::all_of(types, is_known)) {
    return file.refuse(key, fmt::format("a list of {} times \"sliding_attention\" or "
                                        "\"full_attention\"",
                                        config.layers));
  }
  for (const nlohmann::json& type : types)
    config.layer_windows.push_back(type == "sliding_attention");
}

/// Base and scaling of the rotary positions of the layers of one type, as the object `rope` of the
/// field `key` has them.
void read_rope_of_type(ConfigFile& file, const char* key, const nlohmann::json& rope, double& theta,
                       ops::RopeScaling* scaling, std::int64_t pairs) {
  const char* types = "of rope_type \"default\", or in full_attention \"linear\"";
  if (!rope.is_object()) return file.refuse(key, types);
  theta = rope_number(file, key, rope, "rope_theta", theta, kMinTheta, kMaxTheta);
  const nlohmann::json type =
      rope.value("rope_type", rope.value("type", nlohmann::json("default")));
  if (type == "default") return;
  if (type != "linear" || scaling == nullptr) return file.refuse(key, types);
  const double factor = rope_number(file, key, rope, "factor", 1, 1e-3, 1e6);
  scaling->short_divisors.assign(static_cast<std::size_t>(pairs), factor);
  scaling->long_divisors = scaling->short_divisors;
}

/// Two bases, of layers with the window and without. transformers 5 writes rope_parameters with an
/// object for each type of layer.
void read_two_ropes(ConfigFile& file, const DecoderKind& kind, DecoderConfig& config) {
  config.rope_theta =
      file.number_within("rope_theta", kMinTheta, kMaxTheta, kind.published.rope_theta);
  config.local_theta =
      file.number_within("rope_local_base_freq", kMinTheta, kMaxTheta, kind.published.local_theta);
  const std::int64_t pairs = config.rotary() / 2;
  if (const char* key = "rope_scaling"; file.has(key))
    read_rope_of_type(file, key, file.json().at(key), config.rope_theta, &config.rope_scaling,
                      pairs);
  const char* key = "rope_parameters";
  if (!file.has(key)) return;
  const nlohmann::json& by_type = file.json().at(key);
  if (!by_type.is_object())
    return file.refuse(key, "an object of full_attention and sliding_attention");
  for (const auto& [type, rope] : by_type.items()) {
    if (type == "full_attention") {
      read_rope_of_type(file, key, rope, config.rope_theta, &config.rope_scaling, pairs);
    } else if (type == "sliding_attention") {
      read_rope_of_type(file, key, rope, config.local_theta, nullptr, pairs);
    } else {
      file.refuse(key, "an object of full_attention and sliding_attention");
    }
  }
}

/// What only Gemma's files have.
void read_gemma(ConfigFile& file, const ModelFamily& family, const DecoderKind& kind,
                DecoderConfig& config) {
  constexpr double kMaxCap = 1e6;  // null: none
  config.attention_scalar =
      file.size("query_pre_attn_scalar", 1 << 24, kind.published.attention_scalar);
  const auto cap = [&](const char* key, double usual) {
    if (!file.json().contains(key)) return usual;
    return file.has(key) ? file.number_within(key, 1e-3, kMaxCap, usual) : 0.0;
  };
  config.attention_softcap = cap("attn_logit_softcapping", kind.published.attention_softcap);
  config.logit_softcap = cap("final_logit_softcapping", kind.published.logit_softcap);
  // transformers' class reads it and does not follow it.
  if (kind.published.attention_softcap == 0 && config.attention_softcap != 0)
    file.refuse("attn_logit_softcapping", fmt::format("null; {} has no such cap", family.title));
  if (file.flag("use_bidirectional_attention", false))
    file.refuse("use_bidirectional_attention", "false; dstrain trains causal models of text");
  if (file.text("hidden_activation", kGemmaActivation) != kGemmaActivation)
    file.refuse("hidden_activation",
                fmt::format("\"{}\", the only activation that dstrain has for {}", kGemmaActivation,
                            family.title));
}

/// Which layers have experts, and how their results are weighted.
void read_experts(ConfigFile& file, const ModelFamily& family, const DecoderKind& kind,
                  DecoderConfig& config) {
  config.norm_topk = file.flag("norm_topk_prob", kind.published.norm_topk);
  if (file.number("router_jitter_noise", 0) != 0)
    config.notes.push_back(fmt::format(
        "{}: router_jitter_noise is {}; dstrain trains {} without", file.path().string(),
        shown_json(file.json().at("router_jitter_noise")), family.title));
  config.sparse_step = file.size("decoder_sparse_step", config.layers, 1);
  const char* key = "mlp_only_layers";
  if (!file.has(key)) return;
  const nlohmann::json& layers = file.json().at(key);
  const auto is_layer = [&](const nlohmann::json& layer) {
    return layer.is_number_integer() && layer >= 0 && layer < config.layers;
  };
  if (layers.is_array() && std::ranges::all_of(layers, is_layer)) {
    config.dense_layers = layers.get<std::vector<std::int64_t>>();
  } else {
    file.refuse(key, fmt::format("a list of numbers from 0 to {}", config.layers - 1));
  }
}

/// transformers takes the usual window where the file says nothing, and none for null.
void read_window(ConfigFile& file, const DecoderKind& kind, DecoderConfig& config) {
  constexpr std::int64_t kMax = std::int64_t{1} << 40;
  const char* key = "sliding_window";
  config.window = file.json().contains(key) ? file.size(key, kMax, 0) : kind.published.window;
}

/// As many as heads of queries where the family need not say it.
void derive_kv_heads(const ModelFamily& family, ModelSizes& sizes) {
  for (const ModelSize& size : family.sizes) {
    if (size.size == &ModelSizes::kv_heads && size.optional && sizes.kv_heads == 0)
      sizes.kv_heads = sizes.heads;
  }
}

/// What follows from the other sizes.
void derive_head_dim(ModelSizes& sizes) {
  if (sizes.head_dim == 0 && sizes.heads > 0 && sizes.width % sizes.heads == 0)
    sizes.head_dim = sizes.width / sizes.heads;
}

/// Reads the fields of config.json that change the result.
DecoderConfig read_decoder_config(const std::filesystem::path& weights, const ModelFamily& family,
                                  const DecoderKind& kind) {
  ConfigFile file(weights, std::string(family.name));
  DecoderConfig config;
  static_cast<ModelSizes&>(config) = read_sizes(file, family);
  const bool says_head_dim =
      std::ranges::find(family.sizes, "head_dim", &ModelSize::key) != family.sizes.end();
  derive_head_dim(config);
  derive_kv_heads(family, config);
  config.qkv_bias = file.flag("qkv_bias", kind.published.qkv_bias);
  config.qk_norm = kind.published.qk_norm;
  if (kind.published.local_theta > 0) {
    read_two_ropes(file, kind, config);
  } else {
    read_rope(file, kind, config);
  }
  if (kind.longrope && config.head_dim > 0 && (config.rotary() < 2 || config.rotary() % 2 != 0))
    file.refuse("partial_rotary_factor",
                fmt::format("so that an even number of {} elements turns", config.head_dim));
  if (kind.windowed) read_window(file, kind, config);
  if (kind.window_by_layer) read_layer_windows(file, kind, config);
  config.norm_eps = file.number_within("rms_norm_eps", 0, 1, config.norm_eps);
  config.init_std = file.number_within("initializer_range", 0, 100, config.init_std);
  config.tied = file.flag("tie_word_embeddings", kind.published.tied);
  if (kind.gemma) {
    read_gemma(file, family, kind, config);
  } else if (file.text("hidden_act", "silu") != "silu") {
    file.refuse("hidden_act",
                fmt::format("\"silu\", the only activation that dstrain has for {}", family.title));
  }
  if (file.flag("use_sliding_window", false))
    file.refuse("use_sliding_window", "false; dstrain attends to all earlier tokens");
  for (const char* key : {"attention_bias", "mlp_bias", "lm_head_bias"}) {
    if (file.flag(key, false))
      file.refuse(key, fmt::format("false; dstrain has no {} with that", family.title));
  }
  if (!says_head_dim && file.has("head_dim") && file.json().at("head_dim") != config.head_dim)
    file.refuse("head_dim", "hidden_size / num_attention_heads");
  note_dropouts(file, {"attention_dropout", "resid_pdrop", "embd_pdrop"}, family, config.notes);
  if (family.has_experts()) read_experts(file, family, kind, config);
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
  if (config.head_dim == 0) check_multiple("width", config.width, "heads", config.heads, problems);
  check_multiple("heads", config.heads, "kv_heads", config.kv_heads, problems);
  if (!problems.empty()) return;
  if (config.head_dim == 0 && config.width / config.heads % 2 != 0) {
    problems.push_back(
        fmt::format("model.width: {} / model.heads ({}) is {}, but rotary positions need an even "
                    "number",
                    config.width, config.heads, config.width / config.heads));
  } else if (config.head_dim % 2 != 0) {
    problems.push_back(fmt::format("model.head_dim: {}, but rotary positions need an even number",
                                   config.head_dim));
  }
}

void check_experts(const DecoderConfig& config, Problems& problems) {
  if (config.experts_per_token <= config.experts) return;
  problems.push_back(fmt::format("model.experts_per_token: {} is above model.experts ({})",
                                 config.experts_per_token, config.experts));
}

}  // namespace

bool DecoderConfig::has_experts(std::int64_t layer) const {
  return experts > 0 && (layer + 1) % sparse_step == 0 &&
         std::ranges::find(dense_layers, layer) == dense_layers.end();
}

bool DecoderConfig::has_window(std::int64_t layer) const {
  if (window == 0) return false;
  if (!layer_windows.empty()) return layer_windows.at(static_cast<std::size_t>(layer));
  return window_period == 0 || (layer + 1) % window_period != 0;
}

std::int64_t DecoderConfig::expert_layers() const {
  std::int64_t number = 0;
  for (std::int64_t layer = 0; layer < layers; ++layer) number += has_experts(layer) ? 1 : 0;
  return number;
}

nlohmann::json window_field(const DecoderConfig& config) {
  return config.window > 0 ? nlohmann::json(config.window) : nlohmann::json();
}

DecoderConfig decoder_config(const ModelConfig& recipe, const ModelFamily& family,
                             const DecoderKind& kind) {
  Problems problems = foreign_key_problems(recipe, family);
  raise_problems(ErrorKind::usage, problems, "leave it out of the recipe");
  DecoderConfig config = kind.published;
  if (recipe.weights.empty()) {
    static_cast<ModelSizes&>(config) = named_sizes(recipe, family);
    if (const PublishedModel* model = published_model(recipe.name))
      kind.specialize(model->name, config);
    derive_kv_heads(family, config);
  } else {
    config = read_decoder_config(recipe.weights, family, kind);
    compare_sizes(recipe, family, config, problems);
  }
  choose_theta(recipe, config, problems);
  check_limits(family, config, problems);
  if (problems.empty()) check_heads(config, problems);
  check_experts(config, problems);
  raise_size_problems(recipe, problems);
  derive_head_dim(config);
  return config;
}

std::string decoder_config_json(const DecoderConfig& config, const ModelFamily& family,
                                const DecoderKind& kind) {
  nlohmann::json json = kind.fields(config);
  if (config.positions > 0) {
    json["bos_token_id"] = config.begin_token;
    json["eos_token_id"] = config.end_token;
    json["max_position_embeddings"] = std::max(config.positions, config.sequence);
  }
  json["model_type"] = family.name;
  json["attention_dropout"] = 0.0;
  json[kind.gemma ? "hidden_activation" : "hidden_act"] = kind.gemma ? kGemmaActivation : "silu";
  json["initializer_range"] = config.init_std;
  json["rms_norm_eps"] = config.norm_eps;
  json["rope_theta"] = config.rope_theta;
  json["tie_word_embeddings"] = config.tied;
  json["use_cache"] = true;
  if (const ops::RopeScaling& scaling = config.rope_scaling; scaling.factor > 0) {
    json["rope_scaling"] = {
        {"rope_type", "llama3"},
        {"factor", scaling.factor},
        {"low_freq_factor", scaling.low_factor},
        {"high_freq_factor", scaling.high_factor},
        {"original_max_position_embeddings", static_cast<std::int64_t>(scaling.positions)}};
  }
  // What the file says beside sizes (tokens, positions) goes on unchanged.
  if (!config.file.empty()) json = parse_json(config.file, "config.json");
  json["architectures"] = {kind.model_class};
  write_sizes(family, config, json);
  return json_text(json, 2) + "\n";
}

}  // namespace dstrain
