#include "engine/models/bloom/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/base/error.h"
#include "engine/kernels/ops.h"
#include "engine/models/language_head.h"
#include "engine/nn/parameter_order.h"
#include "engine/program/cost.h"

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

}  // namespace

BloomStem::BloomStem(const BloomConfig& config)
    : name_("transformer.word_embeddings"),
      config_(config),
      embedding_(name_, config.vocab_size, config.width, initial(config)),
      norm_("transformer.word_embeddings_layernorm", config.width, config.norm_eps) {}

std::vector<Parameter*> BloomStem::parameters() {
  std::vector<Parameter*> list;
  embedding_.add_parameters(list);
  norm_.add_parameters(list);
  return matrices_first(std::move(list));
}

Tensors BloomStem::forward(const Tensors&, const Batch& batch, const Objective&) {
  return {norm_.forward(embedding_.forward(batch.tokens), std::nullopt).second};
}

BlockCost BloomStem::cost(const BatchShape& shape) const {
  const std::int64_t rows = shape.micro_batch * config_.sequence;
  BlockCost cost;
  cost.name = name_;
  cost.boundary_bytes = rows * config_.width * shape.compute_bytes;
  // The rows of the table, with the statistics of their norm. Backward, their gradient and the
  // output's.
  cost.saved_bytes = cost.boundary_bytes + LayerNorm::kNumStatistics * rows * kFloatBytes;
  cost.backward_workspace = 2 * cost.boundary_bytes;
  return cost;
}

BloomLayer::BloomLayer(const BloomConfig& config, std::int64_t index)
    : name_(fmt::format("transformer.h.{}", index)),
      first_(index == 0),
      config_(config),
      norm_before_(name_ + ".input_layernorm", config.width, config.norm_eps),
      attention_(bloom_attention_names(name_), config.width, attention_shape(config),
                 initial(config)),
      norm_after_(name_ + ".post_attention_layernorm", config.width, config.norm_eps),
      mlp_({.up = name_ + ".mlp.dense_h_to_4h", .down = name_ + ".mlp.dense_4h_to_h"}, config.width,
           config.mlp_width, ops::Gelu::tanh, initial(config)) {}

std::vector<Parameter*> BloomLayer::parameters() {
  std::vector<Parameter*> list;
  norm_before_.add_parameters(list);
  attention_.add_parameters(list);
  norm_after_.add_parameters(list);
  mlp_.add_parameters(list);
  return matrices_first(std::move(list));
}

std::vector<Linear*> BloomLayer::linears() {
  std::vector<Linear*> list;
  attention_.add_linears(list);
  mlp_.add_linears(list);
  return list;
}

Tensors BloomLayer::forward(const Tensors& input, const Batch& batch, const Objective& objective) {
  DSTRAIN_CHECK(input.size() == (first_ ? 1u : 2u), name_ + ": wrong number of inputs");
  const auto [x_MD, h_MD] =
      norm_before_.forward(input[0], first_ ? std::nullopt : std::optional<at::Tensor>(input[1]));
  const std::uint64_t seed = objective.dropout_seed;
  const auto [y_MD, g_MD] = norm_after_.forward(
      x_MD, attention_.forward(h_MD, batch.tokens.size(0), batch.sequences, seed));
  return {y_MD, mlp_.forward(g_MD, seed)};
}

BlockCost BloomLayer::cost(const BatchShape& shape) const {
  const std::int64_t rows = shape.micro_batch * config_.sequence;
  const Bytes stream = rows * config_.width * shape.compute_bytes;      // one [M, D]
  const Bytes hidden = rows * config_.mlp_width * shape.compute_bytes;  // one [M, F]
  const Bytes norm_statistics = LayerNorm::kNumStatistics * rows * kFloatBytes;
  BlockCost cost;
  cost.name = name_;
  cost.forward_flops = attention_.flops(shape.micro_batch, config_.sequence) + mlp_.flops(rows);
  // The first norm's sum, which is the input of the first layer; the second norm's sum is handed
  // on, so the boundary counts it. What follows a norm keeps the norm's output.
  const Bytes kept_by_mlp = mlp_.saved_bytes(rows, shape.compute_bytes);
  cost.saved_bytes = (first_ ? 0 : stream) + 2 * norm_statistics +
                     attention_.saved_bytes(rows, shape.compute_bytes) + kept_by_mlp;
  cost.boundary_bytes = 2 * stream;
  // The attention branch until the second norm has added it.
  cost.forward_workspace = stream;
  // Two places are the largest, as in the Vision Transformer (engine/models/vit/model.cpp). In the
  // GELU's linear: gradients of the stream, of GELU's output and input and of the norm's output;
  // GELU's output has gone. In the attention: gradients of the stream, of its output, and packed
  // ones of query, key and value; those three, their gradients and that of the output again in
  // heads with room for the linear biases; the MLP and its norm have gone.
  const Bytes heads = rows * config_.heads * shape.compute_bytes *
                      ops::attention_head_width(attention_shape(config_), shape.compute_bytes);
  const Bytes in_gelu = 3 * stream + 3 * hidden - kept_by_mlp + (mlp_.has_adapters() ? hidden : 0);
  const Bytes in_attention = 5 * stream + 7 * heads - kept_by_mlp;
  cost.backward_workspace = std::max(in_gelu, in_attention);
  return cost;
}

Model bloom_model(const ModelConfig& recipe, const ModelFamily& family, const ModelInputs& inputs) {
  BloomConfig config = bloom_config(recipe, family);
  config.sequence = inputs.sequence;
  Blocks blocks;
  auto stem = std::make_unique<BloomStem>(config);
  Parameter& table = stem->table();
  blocks.push_back(std::move(stem));
  for (std::int64_t i = 0; i < config.layers; ++i)
    blocks.push_back(std::make_unique<BloomLayer>(config, i));
  blocks.push_back(std::make_unique<LanguageHead>(
      LayerNorm("transformer.ln_f", config.width, config.norm_eps),
      LanguageShape{
          .width = config.width, .vocab_size = config.vocab_size, .sequence = config.sequence},
      config.tied ? &table : nullptr, initial(config)));
  return {.blocks = std::move(blocks),
          .config_json = bloom_config_json(config, family),
          .vocab_size = static_cast<int>(config.vocab_size),
          .sequence = inputs.sequence,
          .notes = config.notes};
}

}  // namespace dstrain
