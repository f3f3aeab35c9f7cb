#include "engine/models/bloom/model.h"

#include <fmt/format.h>

#include <utility>

#include "engine/kernels/ops.h"
#include "engine/models/language_head.h"
#include "engine/models/tensor_rule.h"
#include "engine/nn/attention.h"
#include "engine/nn/mlp.h"
#include "engine/nn/parameter_order.h"
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

std::unique_ptr<Block> make_layer(const BloomConfig& config, const Splits& splits,
                                  std::int64_t index) {
  const std::string name = fmt::format("transformer.h.{}", index);
  return std::make_unique<PreNormLayer<LayerNorm, Mlp>>(
      LayerPlace{.name = name,
                 .width = config.width,
                 .tokens = config.sequence,
                 .first = index == 0,
                 .tensor = splits.tensor},
      LayerNorm(name + ".input_layernorm", config.width, config.norm_eps),
      SelfAttention(bloom_attention_names(name), config.width, attention_shape(config),
                    initial(config), {}, 0, splits),
      LayerNorm(name + ".post_attention_layernorm", config.width, config.norm_eps),
      Mlp({.up = name + ".mlp.dense_h_to_4h", .down = name + ".mlp.dense_4h_to_h"}, config.width,
          config.mlp_width, ops::Gelu::tanh, initial(config), splits.tensor));
}

}  // namespace

BloomStem::BloomStem(const BloomConfig& config, const AxisPart& tensor)
    : name_("transformer.word_embeddings"),
      config_(config),
      tensor_(tensor),
      embedding_(name_, config.vocab_size, config.width, initial(config), tensor),
      norm_("transformer.word_embeddings_layernorm", config.width, config.norm_eps) {}

std::vector<Parameter*> BloomStem::parameters() {
  std::vector<Parameter*> list;
  embedding_.add_parameters(list);
  norm_.add_parameters(list);
  return matrices_first(std::move(list));
}

Tensors BloomStem::forward(const Tensors&, const Batch& batch, const BlockContext& context) {
  const Call call = {.peers = context.peers};
  return {norm_.forward(embedding_.forward(batch.tokens, call), std::nullopt).second};
}

BlockCost BloomStem::cost(const BatchShape& shape) const {
  const std::int64_t rows = shape.micro_batch * config_.sequence / tensor_.count;
  BlockCost cost;
  cost.name = name_;
  cost.boundary = {{{rows, config_.width}, shape.compute_bytes}};
  // The rows of the table, with the statistics of their norm. Backward, their gradient and the
  // output's.
  cost.take({embedding_.cost(), norm_.cost(rows, cost.boundary_bytes())});
  cost.backward_workspace = 2 * cost.boundary_bytes();
  embedding_.add_exchanges(cost.exchanges, cost.boundary_bytes() * tensor_.count,
                           shape.compute_bytes);
  return cost;
}

Model bloom_model(const ModelConfig& recipe, const ModelFamily& family, const ModelInputs& inputs) {
  BloomConfig config = bloom_config(recipe, family);
  const AxisPart& tensor = inputs.splits.tensor;
  require_tensor_degree(config, tensor);
  config.sequence = inputs.sequence;
  std::string config_json = bloom_config_json(config, family);
  config.sequence = inputs.own_tokens();
  Blocks blocks;
  auto stem = std::make_unique<BloomStem>(config, tensor);
  Parameter& table = stem->table();
  blocks.push_back(std::move(stem));
  for (std::int64_t i = 0; i < config.layers; ++i)
    blocks.push_back(make_layer(config, inputs.splits, i));
  blocks.push_back(
      std::make_unique<LanguageHead>(LayerNorm("transformer.ln_f", config.width, config.norm_eps),
                                     LanguageShape{.width = config.width,
                                                   .vocab_size = config.vocab_size,
                                                   .sequence = config.sequence,
                                                   .part = inputs.splits.sequence,
                                                   .tensor = tensor},
                                     config.tied ? &table : nullptr, initial(config)));
  return {.blocks = std::move(blocks),
          .config_json = std::move(config_json),
          .vocab_size = static_cast<int>(config.vocab_size),
          .sequence = inputs.sequence,
          .notes = config.notes,
          .tokens = inputs.own_tokens()};
}

}  // namespace dstrain
