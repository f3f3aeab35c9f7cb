#include "engine/models/decoder/model.h"

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

InitialWeights initial(const DecoderConfig& config) { return {Init::normal, config.init_std}; }

AttentionNames decoder_attention_names(const std::string& layer, const DecoderConfig& config) {
  const std::string attention = layer + ".self_attn";
  return {.qkv = {attention + ".q_proj", attention + ".k_proj", attention + ".v_proj"},
          .output = attention + ".o_proj",
          .query_norm = config.qk_norm ? attention + ".q_norm" : "",
          .key_norm = config.qk_norm ? attention + ".k_norm" : ""};
}

ops::AttentionShape attention_shape(const DecoderConfig& config) {
  return {.heads = config.heads,
          .kv_heads = config.kv_heads,
          .head_dim = config.head_dim,
          .causal = true,
          .rope_theta = config.rope_theta,
          .rope_scaling = config.rope_scaling};
}

GatedMlpNames mlp_names(const std::string& layer) {
  return {.gate = layer + ".mlp.gate_proj",
          .up = layer + ".mlp.up_proj",
          .down = layer + ".mlp.down_proj"};
}

}  // namespace

DecoderStem::DecoderStem(const DecoderConfig& config)
    : name_("model.embed_tokens"),
      config_(config),
      embedding_(name_, config.vocab_size, config.width, initial(config)) {}

Tensors DecoderStem::forward(const Tensors&, const Batch& batch, const Objective&) {
  return {embedding_.forward(batch.tokens)};
}

BlockCost DecoderStem::cost(const BatchShape& shape) const {
  BlockCost cost;
  cost.name = name_;
  cost.boundary_bytes = shape.micro_batch * config_.sequence * config_.width * shape.compute_bytes;
  cost.backward_workspace = cost.boundary_bytes;  // the gradient of what it returned
  return cost;
}

DecoderLayer::DecoderLayer(const DecoderConfig& config, std::int64_t index)
    : name_(fmt::format("model.layers.{}", index)),
      first_(index == 0),
      config_(config),
      norm_before_(name_ + ".input_layernorm", config.width, config.norm_eps),
      attention_(decoder_attention_names(name_, config), config.width, attention_shape(config),
                 initial(config), {.qkv = config.qkv_bias, .output = false}, config.norm_eps),
      norm_after_(name_ + ".post_attention_layernorm", config.width, config.norm_eps),
      mlp_(mlp_names(name_), config.width, config.mlp_width, initial(config)) {}

std::vector<Parameter*> DecoderLayer::parameters() {
  std::vector<Parameter*> list;
  norm_before_.add_parameters(list);
  attention_.add_parameters(list);
  norm_after_.add_parameters(list);
  mlp_.add_parameters(list);
  return matrices_first(std::move(list));
}

std::vector<Linear*> DecoderLayer::linears() {
  std::vector<Linear*> list;
  attention_.add_linears(list);
  mlp_.add_linears(list);
  return list;
}

Tensors DecoderLayer::forward(const Tensors& input, const Batch& batch,
                              const Objective& objective) {
  DSTRAIN_CHECK(input.size() == (first_ ? 1u : 2u), name_ + ": wrong number of inputs");
  const auto [x_MD, h_MD] =
      norm_before_.forward(input[0], first_ ? std::nullopt : std::optional<at::Tensor>(input[1]));
  const std::uint64_t seed = objective.dropout_seed;
  const auto [y_MD, g_MD] = norm_after_.forward(
      x_MD, attention_.forward(h_MD, batch.tokens.size(0), batch.sequences, seed));
  return {y_MD, mlp_.forward(g_MD, seed)};
}

BlockCost DecoderLayer::cost(const BatchShape& shape) const {
  const std::int64_t rows = shape.micro_batch * config_.sequence;
  const Bytes stream = rows * config_.width * shape.compute_bytes;      // one [M, D]
  const Bytes qkv = rows * config_.qkv_width() * shape.compute_bytes;   // queries, keys, values
  const Bytes hidden = rows * config_.mlp_width * shape.compute_bytes;  // one [M, F]
  const Bytes norm_statistics = RmsNorm::kNumStatistics * rows * kFloatBytes;
  BlockCost cost;
  cost.name = name_;
  cost.forward_flops = attention_.flops(shape.micro_batch, config_.sequence) + mlp_.flops(rows);
  // The first norm's sum, which is the input of the first layer; the second norm's sum is handed
  // on, so the boundary counts it. What follows a norm keeps the norm's output.
  const Bytes kept_by_mlp = mlp_.saved_bytes(rows, shape.compute_bytes);
  cost.saved_bytes = (first_ ? 0 : stream) + 2 * norm_statistics +
                     attention_.saved_bytes(rows, shape.compute_bytes) + kept_by_mlp;
  cost.boundary_bytes = 2 * stream;
  // The attention branch until the second norm has added it, or the product of gate and up until it
  // is multiplied.
  cost.forward_workspace = std::max(stream, hidden);
  // Two places are the largest, counted against what autograd has let go by then. In the SwiGLU's
  // linear: gradients of the stream, of the product, of gate and up, and the product once more. In
  // the attention: gradients of the stream and of its output, and those of query, key and value
  // twice, apart and packed; the MLP and its norm have gone.
  const Bytes in_swiglu = stream + 4 * hidden;
  const Bytes in_attention = 2 * stream + 2 * qkv - kept_by_mlp;
  cost.backward_workspace = std::max(in_swiglu, in_attention);
  return cost;
}

Model decoder_model(DecoderConfig config, const ModelFamily& family, const DecoderKind& kind,
                    int sequence) {
  config.sequence = sequence;
  Blocks blocks;
  auto stem = std::make_unique<DecoderStem>(config);
  Parameter& table = stem->table();
  blocks.push_back(std::move(stem));
  for (std::int64_t i = 0; i < config.layers; ++i)
    blocks.push_back(std::make_unique<DecoderLayer>(config, i));
  blocks.push_back(std::make_unique<LanguageHead>(
      RmsNorm("model.norm", config.width, config.norm_eps),
      LanguageShape{
          .width = config.width, .vocab_size = config.vocab_size, .sequence = config.sequence},
      config.tied ? &table : nullptr, initial(config)));
  return {.blocks = std::move(blocks),
          .config_json = decoder_config_json(config, family, kind),
          .vocab_size = static_cast<int>(config.vocab_size),
          .sequence = sequence,
          .notes = config.notes};
}

}  // namespace dstrain
