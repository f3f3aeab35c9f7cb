#include "engine/models/qwen2.h"

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

InitialWeights initial(const Qwen2Config& config) { return {Init::normal, config.init_std}; }

AttentionNames qwen2_attention_names(const std::string& layer) {
  return {.qkv = {layer + ".self_attn.q_proj", layer + ".self_attn.k_proj",
                  layer + ".self_attn.v_proj"},
          .output = layer + ".self_attn.o_proj"};
}

ops::AttentionShape attention_shape(const Qwen2Config& config) {
  return {.heads = config.heads,
          .kv_heads = config.kv_heads,
          .head_dim = config.head_dim(),
          .causal = true,
          .rope_theta = config.rope_theta};
}

GatedMlpNames mlp_names(const std::string& layer) {
  return {.gate = layer + ".mlp.gate_proj",
          .up = layer + ".mlp.up_proj",
          .down = layer + ".mlp.down_proj"};
}

}  // namespace

Qwen2Stem::Qwen2Stem(const Qwen2Config& config)
    : name_("model.embed_tokens"),
      config_(config),
      embedding_(name_, config.vocab_size, config.width, initial(config)) {}

Tensors Qwen2Stem::forward(const Tensors&, const Batch& batch, const Objective&) {
  return {embedding_.forward(batch.tokens)};
}

BlockCost Qwen2Stem::cost(const BatchShape& shape) const {
  BlockCost cost;
  cost.name = name_;
  cost.boundary_bytes = shape.micro_batch * config_.sequence * config_.width * shape.compute_bytes;
  cost.backward_workspace = cost.boundary_bytes;  // the gradient of what it returned
  return cost;
}

Qwen2Layer::Qwen2Layer(const Qwen2Config& config, std::int64_t index)
    : name_(fmt::format("model.layers.{}", index)),
      first_(index == 0),
      config_(config),
      norm_before_(name_ + ".input_layernorm", config.width, config.norm_eps),
      attention_(qwen2_attention_names(name_), config.width, attention_shape(config),
                 initial(config), {.qkv = true, .output = false}),
      norm_after_(name_ + ".post_attention_layernorm", config.width, config.norm_eps),
      mlp_(mlp_names(name_), config.width, config.mlp_width, initial(config)) {}

std::vector<Parameter*> Qwen2Layer::parameters() {
  std::vector<Parameter*> list;
  norm_before_.add_parameters(list);
  attention_.add_parameters(list);
  norm_after_.add_parameters(list);
  mlp_.add_parameters(list);
  return matrices_first(std::move(list));
}

std::vector<Linear*> Qwen2Layer::linears() {
  std::vector<Linear*> list;
  attention_.add_linears(list);
  mlp_.add_linears(list);
  return list;
}

Tensors Qwen2Layer::forward(const Tensors& input, const Batch& batch, const Objective& objective) {
  DSTRAIN_CHECK(input.size() == (first_ ? 1u : 2u), name_ + ": wrong number of inputs");
  const auto [x_MD, h_MD] =
      norm_before_.forward(input[0], first_ ? std::nullopt : std::optional<at::Tensor>(input[1]));
  const std::uint64_t seed = objective.dropout_seed;
  const auto [y_MD, g_MD] = norm_after_.forward(
      x_MD, attention_.forward(h_MD, batch.tokens.size(0), batch.sequences, seed));
  return {y_MD, mlp_.forward(g_MD, seed)};
}

BlockCost Qwen2Layer::cost(const BatchShape& shape) const {
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

Blocks make_qwen2(const Qwen2Config& config) {
  Blocks blocks;
  auto stem = std::make_unique<Qwen2Stem>(config);
  Parameter& table = stem->table();
  blocks.push_back(std::move(stem));
  for (std::int64_t i = 0; i < config.layers; ++i)
    blocks.push_back(std::make_unique<Qwen2Layer>(config, i));
  blocks.push_back(std::make_unique<LanguageHead>(
      RmsNorm("model.norm", config.width, config.norm_eps),
      LanguageShape{
          .width = config.width, .vocab_size = config.vocab_size, .sequence = config.sequence},
      config.tied ? &table : nullptr, initial(config)));
  return blocks;
}

}  // namespace dstrain
