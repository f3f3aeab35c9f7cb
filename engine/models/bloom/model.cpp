#include "engine/models/bloom/model.h"

#include <fmt/format.h>

#include <utility>

#include "engine/base/error.h"
#include "engine/kernels/attention/kernels.h"
#include "engine/models/language_head.h"
#include "engine/models/tensor_rule.h"
#include "engine/models/token_stem.h"
#include "engine/nn/attention.h"
#include "engine/nn/mlp.h"
#include "engine/nn/pre_norm_layer.h"

namespace dstrain {
namespace {

InitialWeights initial(const BloomConfig& config) { return {Init::normal, config.init_std}; }

AttentionNames bloom_attention_names(const std::string& layer) {
  return {.qkv = {layer + ".self_attention.query_key_value"},
          .output = layer + ".self_attention.dense"};
}

ops::AttentionShape attention_shape(const BloomConfig& config) {
  return {.heads = config.heads,
          .kv_heads = config.kv_heads,
          .head_dim = config.head_dim,
          .interleaved = true,
          .causal = true,
          .alibi = true};
}

std::unique_ptr<Block> make_layer(const BloomConfig& config, const ModelInputs& inputs,
                                  std::int64_t index) {
  const std::string name = fmt::format("transformer.h.{}", index);
  return std::make_unique<PreNormLayer<LayerNorm, Mlp>>(
      LayerPlace{.name = name,
                 .width = config.width,
                 .tokens = config.sequence,
                 .first = index == 0,
                 .tensor = inputs.splits.tensor,
                 .tile_rows = inputs.tile_rows},
      LayerNorm(name + ".input_layernorm", config.width, config.norm_eps),
      SelfAttention(bloom_attention_names(name), config.width, attention_shape(config),
                    initial(config), {}, 0, inputs.splits),
      LayerNorm(name + ".post_attention_layernorm", config.width, config.norm_eps),
      Mlp({.up = name + ".mlp.dense_h_to_4h", .down = name + ".mlp.dense_4h_to_h"}, config.width,
          config.mlp_width, ops::Gelu::tanh, initial(config), inputs.splits.tensor));
}

/// Error{usage} where samples are longer than linear biases are exact, or ranks cannot share
/// layers.
void check_inputs(const BloomConfig& config, const ModelFamily& family, const ModelInputs& inputs) {
  if (inputs.sequence > kernels::kAlibiPositions)
    throw Error(
        ErrorKind::usage,
        fmt::format("data.sequence: {} tokens, but the linear biases of {} are computed for "
                    "at most {}",
                    inputs.sequence, family.title, kernels::kAlibiPositions),
        fmt::format("use at most {}", kernels::kAlibiPositions));
  require_tensor_degree(config, inputs.splits.tensor);
}

}  // namespace

Model bloom_model(const ModelConfig& recipe, const ModelFamily& family, const ModelInputs& inputs) {
  BloomConfig config = bloom_config(recipe, family);
  check_inputs(config, family, inputs);
  config.sequence = inputs.sequence;
  std::string config_json = bloom_config_json(config, family);
  config.sequence = inputs.own_tokens();
  const LanguageShape shape = language_shape(config, inputs);
  const std::string embeddings = "transformer.word_embeddings";
  auto stem = std::make_unique<TokenStem>(
      embeddings, shape, initial(config), /*scale=*/1,
      LayerNorm(embeddings + "_layernorm", config.width, config.norm_eps));
  Blocks blocks = language_blocks(
      std::move(stem), config.layers, [&](std::int64_t i) { return make_layer(config, inputs, i); },
      LayerNorm("transformer.ln_f", config.width, config.norm_eps), shape, config.tied,
      initial(config));
  return language_model(std::move(blocks), config, inputs, std::move(config_json),
                        std::move(config.notes));
}

}  // namespace dstrain
