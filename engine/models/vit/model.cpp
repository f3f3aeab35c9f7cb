#include "engine/models/vit/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/base/error.h"
#include "engine/kernels/ops.h"
#include "engine/nn/parameter_order.h"
#include "engine/program/cost.h"

namespace dstrain {
namespace {

std::optional<at::Tensor> delta_of(const Tensors& input) {
  if (input.size() < 2) return std::nullopt;
  return input[1];
}

Parameter embedding(const std::string& name, const std::vector<std::int64_t>& shape,
                    double init_std) {
  Parameter parameter;
  parameter.parts = {{name, shape}};
  parameter.shape = shape;
  parameter.init = Init::truncated_normal;
  parameter.init_std = init_std;
  return parameter;
}

InitialWeights initial(const VitConfig& config) {
  return {Init::truncated_normal, config.init_std};
}

std::string layer_name(std::int64_t index) { return fmt::format("vit.encoder.layer.{}", index); }

AttentionNames vit_attention_names(const std::string& layer) {
  const std::string attention = layer + ".attention.attention.";
  return {.qkv = {attention + "query", attention + "key", attention + "value"},
          .output = layer + ".attention.output.dense"};
}

ops::AttentionShape attention_shape(const VitConfig& config) {
  return {.heads = config.heads, .kv_heads = config.heads, .head_dim = config.width / config.heads};
}

}  // namespace

VitStem::VitStem(const VitConfig& config)
    : name_("vit.embeddings"),
      config_(config),
      class_token_(embedding(name_ + ".cls_token", {1, 1, config.width}, config.init_std)),
      positions_(embedding(name_ + ".position_embeddings", {1, config.tokens(), config.width},
                           config.init_std)),
      projection_({{name_ + ".patch_embeddings.projection", config.width}},
                  {config.channels, config.patch_size, config.patch_size}, initial(config)) {}

std::vector<Parameter*> VitStem::parameters() {
  std::vector<Parameter*> list = {&class_token_, &positions_};
  projection_.add_parameters(list);
  return matrices_first(std::move(list));
}

Tensors VitStem::forward(const Tensors&, const Batch& batch, const Objective&) {
  return {ops::embed_sequence(projection_.forward(ops::patchify(batch.images, config_.patch_size)),
                              batch.images.size(0), class_token_, positions_)};
}

BlockCost VitStem::cost(const BatchShape& shape) const {
  const std::int64_t patch_rows = shape.micro_batch * config_.patches();
  const std::int64_t pixels = config_.channels * config_.patch_size * config_.patch_size;
  const Bytes embedded = patch_rows * config_.width * shape.compute_bytes;
  BlockCost cost;
  cost.name = name_;
  cost.forward_flops = projection_.flops(patch_rows);
  cost.saved_bytes =
      patch_rows * pixels * shape.compute_bytes;  // rows of patches, for the weight's gradient
  cost.boundary_bytes = shape.micro_batch * config_.tokens() * config_.width * shape.compute_bytes;
  // The projected patches, forward until the positions are added; their gradient, and that of the
  // sequence, backward.
  cost.forward_workspace = embedded;
  cost.backward_workspace = embedded + cost.boundary_bytes;
  return cost;
}

VitLayer::VitLayer(const VitConfig& config, std::int64_t index)
    : name_(layer_name(index)),
      first_(index == 0),
      last_(index + 1 == config.layers),
      config_(config),
      norm_before_(name_ + ".layernorm_before", config.width, config.norm_eps),
      attention_(vit_attention_names(name_), config.width, attention_shape(config),
                 initial(config)),
      norm_after_(name_ + ".layernorm_after", config.width, config.norm_eps),
      mlp_({.up = name_ + ".intermediate.dense", .down = name_ + ".output.dense"}, config.width,
           config.mlp_width, ops::Gelu::erf, initial(config)) {}

std::vector<Parameter*> VitLayer::parameters() {
  std::vector<Parameter*> list;
  norm_before_.add_parameters(list);
  attention_.add_parameters(list);
  norm_after_.add_parameters(list);
  mlp_.add_parameters(list);
  return matrices_first(std::move(list));
}

std::vector<Linear*> VitLayer::linears() {
  std::vector<Linear*> list;
  attention_.add_linears(list);
  mlp_.add_linears(list);
  return list;
}

Tensors VitLayer::forward(const Tensors& input, const Batch&, const Objective& objective) {
  DSTRAIN_CHECK(input.size() == (first_ ? 1u : 2u), name_ + ": wrong number of inputs");
  const std::int64_t batch = input[0].size(0) / config_.tokens();
  const auto [x_MD, h_MD] = norm_before_.forward(input[0], delta_of(input));
  const auto [y_MD, g_MD] =
      norm_after_.forward(x_MD, attention_.forward(h_MD, batch, {}, objective.dropout_seed));
  return {y_MD, mlp_.forward(g_MD, objective.dropout_seed)};
}

BlockCost VitLayer::cost(const BatchShape& shape) const {
  const std::int64_t rows = shape.micro_batch * config_.tokens();
  const Bytes stream = rows * config_.width * shape.compute_bytes;      // one [M, D]
  const Bytes hidden = rows * config_.mlp_width * shape.compute_bytes;  // one [M, F]
  const Bytes norm_statistics = 2 * rows * kFloatBytes;  // mean and 1/std of each row
  BlockCost cost;
  cost.name = name_;
  cost.forward_flops = attention_.flops(shape.micro_batch, config_.tokens()) + mlp_.flops(rows);
  // The first norm's sum, which is the input of the first layer; the second norm's sum is handed
  // on, so the boundary counts it. What follows a norm keeps the norm's output.
  const Bytes kept_by_mlp = mlp_.saved_bytes(rows, shape.compute_bytes);
  cost.saved_bytes = (first_ ? 0 : stream) + 2 * norm_statistics +
                     attention_.saved_bytes(rows, shape.compute_bytes) + kept_by_mlp;
  cost.boundary_bytes = 2 * stream;
  // The attention branch until the second norm has added it.
  cost.forward_workspace = stream;
  // Two places are the largest, counted against what autograd has let go by then. In the GELU's
  // linear: gradients of the stream, of GELU's output and input and of the norm's output; GELU's
  // output has gone. In the attention: gradients of the stream and of its output, and those of
  // query, key and value twice, apart and packed; the MLP and its norm have gone. The head returns
  // the gradients of its two inputs apart, every layer one tensor for both.
  const Bytes in_gelu = 3 * stream + 3 * hidden - kept_by_mlp + (mlp_.has_adapters() ? hidden : 0);
  const Bytes in_attention = 8 * stream - kept_by_mlp;
  cost.backward_workspace = std::max(in_gelu, in_attention) + (last_ ? stream : 0);
  return cost;
}

VitHead::VitHead(const VitConfig& config)
    : name_("classifier"),
      config_(config),
      norm_("vit.layernorm", config.width, config.norm_eps),
      classifier_({{name_, config.classes}}, {config.width}, initial(config)) {}

std::vector<Parameter*> VitHead::parameters() {
  std::vector<Parameter*> list;
  norm_.add_parameters(list);
  classifier_.add_parameters(list);
  return matrices_first(std::move(list));
}

at::Tensor VitHead::logits(const Tensors& input) {
  DSTRAIN_CHECK(input.size() == 2, name_ + ": wrong number of inputs");
  const std::int64_t batch = input[0].size(0) / config_.tokens();
  // The norm acts on each token by itself, so only the class token needs it.
  return classifier_.forward(
      norm_.forward(ops::first_token(input[0], batch), ops::first_token(input[1], batch)).second);
}

Tensors VitHead::forward(const Tensors& input, const Batch& batch, const Objective& objective) {
  return {ops::softmax_cross_entropy(logits(input), batch.labels, batch.weights,
                                     objective.label_smoothing, objective.totals)};
}

BlockCost VitHead::cost(const BatchShape& shape) const {
  const Bytes token = shape.micro_batch * config_.width * shape.compute_bytes;
  const Bytes stream = token * config_.tokens();
  const Bytes logits = shape.micro_batch * config_.classes * shape.compute_bytes;
  BlockCost cost;
  cost.name = name_;
  cost.forward_flops = classifier_.flops(shape.micro_batch);
  // Sum and output of the norm with its statistics, logits and their log-sum-exp.
  cost.saved_bytes = 2 * token + 3 * shape.micro_batch * kFloatBytes + logits;
  cost.boundary_bytes = kFloatBytes;
  // The class tokens of both inputs and the loss's terms; backward, the gradients of both inputs
  // and of what led to them.
  cost.forward_workspace = 2 * token + 4 * shape.micro_batch * kFloatBytes;
  cost.backward_workspace = 2 * stream + 2 * token + logits;
  return cost;
}

Model vit_model(const ModelConfig& recipe, const ModelFamily& family, const ModelInputs& inputs) {
  const VitConfig config = vit_config(recipe, family, inputs.classes);
  Blocks blocks;
  blocks.push_back(std::make_unique<VitStem>(config));
  for (std::int64_t i = 0; i < config.layers; ++i)
    blocks.push_back(std::make_unique<VitLayer>(config, i));
  blocks.push_back(std::make_unique<VitHead>(config));
  return {.blocks = std::move(blocks),
          .config_json = vit_config_json(config, family),
          .image_size = static_cast<int>(config.image_size),
          .channels = static_cast<int>(config.channels),
          .classes = static_cast<int>(config.classes)};
}

}  // namespace dstrain
