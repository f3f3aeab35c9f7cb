#include "engine/models/gpt2/model.h"

#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <utility>

#include "engine/base/error.h"
#include "engine/models/language_head.h"
#include "engine/models/tensor_rule.h"
#include "engine/models/token_stem.h"
#include "engine/nn/attention.h"
#include "engine/nn/mlp.h"
#include "engine/nn/pre_norm_layer.h"

namespace dstrain {
namespace {

InitialWeights initial(const Gpt2Config& config) { return {Init::normal, config.init_std}; }

ops::AttentionShape attention_shape(const Gpt2Config& config, std::int64_t layer) {
  return {.heads = config.heads,
          .kv_heads = config.kv_heads,
          .head_dim = config.head_dim,
          .causal = true,
          .scale = config.score_scale(layer)};
}

/// Both branches of each layer add to the stream, so the last matrices of all begin smaller.
template <class Branch>
Branch with_small_output(Branch branch, const Gpt2Config& config) {
  std::vector<Linear*> maps;
  branch.add_linears(maps);
  maps.back()->weight().init_std =
      config.init_std / std::sqrt(2 * static_cast<double>(config.layers));
  return branch;
}

std::unique_ptr<Block> make_layer(const Gpt2Config& config, const ModelInputs& inputs,
                                  std::int64_t index) {
  const std::string name = fmt::format("transformer.h.{}", index);
  SelfAttention attention({.qkv = {name + ".attn.c_attn"}, .output = name + ".attn.c_proj"},
                          config.width, attention_shape(config, index), initial(config), {}, 0,
                          inputs.splits);
  Mlp mlp({.up = name + ".mlp.c_fc", .down = name + ".mlp.c_proj"}, config.width, config.mlp_width,
          config.gelu, initial(config), inputs.splits.tensor);
  return std::make_unique<PreNormLayer<LayerNorm, Mlp>>(
      LayerPlace{.name = name,
                 .width = config.width,
                 .tokens = config.sequence,
                 .first = index == 0,
                 .tensor = inputs.splits.tensor,
                 .tile_rows = inputs.tile_rows},
      LayerNorm(name + ".ln_1", config.width, config.norm_eps),
      with_small_output(std::move(attention), config),
      LayerNorm(name + ".ln_2", config.width, config.norm_eps),
      with_small_output(std::move(mlp), config));
}

/// Error{usage} where samples are longer than the table, or ranks cannot share the layers.
void check_inputs(const Gpt2Config& config, const ModelFamily& family, const ModelInputs& inputs) {
  if (inputs.sequence > config.positions)
    throw Error(ErrorKind::usage,
                fmt::format("data.sequence: {} tokens, but this {} has learnt {} positions "
                            "(n_positions)",
                            inputs.sequence, family.title, config.positions),
                fmt::format("use at most {}", config.positions));
  require_tensor_degree(config, inputs.splits.tensor);
}

}  // namespace

Model gpt2_model(const ModelConfig& recipe, const ModelFamily& family, const ModelInputs& inputs) {
  Gpt2Config config = gpt2_config(recipe, family);
  check_inputs(config, family, inputs);
  std::string config_json = gpt2_config_json(config, family);
  config.sequence = inputs.own_tokens();
  const LanguageShape shape = language_shape(config, inputs);
  auto stem = std::make_unique<TokenStem>(
      "transformer.wte", shape, initial(config), /*scale=*/1, std::nullopt,
      LearntPositions("transformer.wpe", config.positions, config.width, initial(config),
                      shape.tensor));
  Blocks blocks = language_blocks(
      std::move(stem), config.layers, [&](std::int64_t i) { return make_layer(config, inputs, i); },
      LayerNorm("transformer.ln_f", config.width, config.norm_eps), shape, config.tied,
      initial(config));
  return language_model(std::move(blocks), config, inputs, std::move(config_json),
                        std::move(config.notes));
}

}  // namespace dstrain
