#include "engine/models/gpt_neox/model.h"

#include <fmt/format.h>

#include <memory>
#include <string_view>
#include <utility>

#include "engine/models/language_head.h"
#include "engine/models/tensor_rule.h"
#include "engine/models/token_stem.h"
#include "engine/nn/attention.h"
#include "engine/nn/mlp.h"
#include "engine/nn/pre_norm_layer.h"

namespace dstrain {
namespace {

constexpr std::string_view kPrefix = "gpt_neox.";

InitialWeights initial(const GptNeoxConfig& config) { return {Init::normal, config.init_std}; }

ops::AttentionShape attention_shape(const GptNeoxConfig& config) {
  return {.heads = config.heads,
          .kv_heads = config.kv_heads,
          .head_dim = config.head_dim,
          .interleaved = true,
          .causal = true,
          .rope_theta = config.rope_theta,
          .rotary = config.rotary()};
}

std::unique_ptr<Block> make_layer(const GptNeoxConfig& config, const ModelInputs& inputs,
                                  std::int64_t index) {
  const std::string name = fmt::format("{}layers.{}", kPrefix, index);
  return std::make_unique<PreNormLayer<LayerNorm, Mlp>>(
      LayerPlace{.name = name,
                 .width = config.width,
                 .tokens = config.sequence,
                 .first = index == 0,
                 .tensor = inputs.splits.tensor,
                 .tile_rows = inputs.tile_rows,
                 .parallel = config.parallel},
      LayerNorm(name + ".input_layernorm", config.width, config.norm_eps),
      SelfAttention(
          {.qkv = {name + ".attention.query_key_value"}, .output = name + ".attention.dense"},
          config.width, attention_shape(config), initial(config),
          {.qkv = config.attention_bias, .output = config.attention_bias}, 0, inputs.splits),
      LayerNorm(name + ".post_attention_layernorm", config.width, config.norm_eps),
      Mlp({.up = name + ".mlp.dense_h_to_4h", .down = name + ".mlp.dense_4h_to_h"}, config.width,
          config.mlp_width, config.gelu, initial(config), inputs.splits.tensor));
}

}  // namespace

std::vector<std::string> gpt_neox_file_names(const std::string& name) {
  if (name == kLanguageHeadWeight) return {"embed_out.weight", name};
  if (!name.starts_with(kPrefix)) return {name};
  return {name, name.substr(kPrefix.size())};  // a model without head
}

Model gpt_neox_model(const ModelConfig& recipe, const ModelFamily& family,
                     const ModelInputs& inputs) {
  GptNeoxConfig config = gpt_neox_config(recipe, family);
  require_tensor_degree(config, inputs.splits.tensor);
  config.sequence = inputs.sequence;
  std::string config_json = gpt_neox_config_json(config, family);
  config.sequence = inputs.own_tokens();
  const LanguageShape shape = language_shape(config, inputs);
  auto stem =
      std::make_unique<TokenStem>(fmt::format("{}embed_in", kPrefix), shape, initial(config));
  Blocks blocks = language_blocks(
      std::move(stem), config.layers, [&](std::int64_t i) { return make_layer(config, inputs, i); },
      LayerNorm(fmt::format("{}final_layer_norm", kPrefix), config.width, config.norm_eps), shape,
      config.tied, initial(config));
  return language_model(std::move(blocks), config, inputs, std::move(config_json),
                        std::move(config.notes));
}

}  // namespace dstrain
