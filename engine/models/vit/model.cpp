#include "engine/models/vit/model.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <fmt/format.h>

#include <utility>

#include "engine/base/error.h"
#include "engine/comm/communicator.h"
#include "engine/kernels/ops.h"
#include "engine/kernels/tensor/ops_tensor.h"
#include "engine/models/image/class_loss.h"
#include "engine/models/tensor_rule.h"
#include "engine/nn/attention.h"
#include "engine/nn/layer_cost.h"
#include "engine/nn/mlp.h"
#include "engine/nn/parameter_order.h"
#include "engine/nn/pre_norm_layer.h"

namespace dstrain {
namespace {

Parameter embedding(const std::string& name, const std::vector<std::int64_t>& shape,
                    double init_std) {
  Parameter parameter;
  parameter.hold({{name, shape}});
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

std::unique_ptr<Block> make_layer(const VitConfig& config, std::int64_t index,
                                  const ModelInputs& inputs) {
  const std::string name = layer_name(index);
  const AxisPart& tensor = inputs.splits.tensor;
  // The head returns the gradients of its two inputs apart, every layer one tensor for both.
  return std::make_unique<PreNormLayer<LayerNorm, Mlp>>(
      LayerPlace{.name = name,
                 .width = config.width,
                 .tokens = config.tokens(),
                 .first = index == 0,
                 .gradients_apart = index + 1 == config.layers,
                 .tensor = tensor,
                 .tile_rows = inputs.tile_rows,
                 .drop_path = config.layers > 1 ? config.drop_path * static_cast<double>(index) /
                                                      static_cast<double>(config.layers - 1)
                                                : 0},
      LayerNorm(name + ".layernorm_before", config.width, config.norm_eps),
      SelfAttention(vit_attention_names(name), config.width, attention_shape(config),
                    initial(config), {}, 0, {.tensor = tensor}),
      LayerNorm(name + ".layernorm_after", config.width, config.norm_eps),
      Mlp({.up = name + ".intermediate.dense", .down = name + ".output.dense"}, config.width,
          config.mlp_width, ops::Gelu::erf, initial(config), tensor));
}

}  // namespace

VitStem::VitStem(const VitConfig& config, const AxisPart& tensor)
    : name_("vit.embeddings"),
      config_(config),
      tensor_(tensor),
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

Tensors VitStem::forward(const Tensors&, const Batch& batch, const BlockContext&) {
  const at::Tensor patches = ops::patchify(batch.images, config_.patch_size);
  const at::Tensor rows = ops::embed_sequence(projection_.forward(patches), batch.images.size(0),
                                              class_token_, positions_);
  return {ops::own_rows(rows, tensor_)};
}

BlockCost VitStem::cost(const BatchShape& shape) const {
  const std::int64_t patch_rows = shape.micro_batch * config_.patches();
  const std::int64_t pixels = config_.channels * config_.patch_size * config_.patch_size;
  const Bytes embedded = patch_rows * config_.width * shape.compute_bytes;
  BlockCost cost;
  cost.name = name_;
  LayerCost patches = projection_.cost(patch_rows, shape.compute_bytes, true);
  patches.saved_bytes +=
      patch_rows * pixels * shape.compute_bytes;  // rows of patches, for the weight's gradient
  LayerCost embeddings{.name = name_ + ".cls_token, position_embeddings"};
  count(class_token_, embeddings);
  count(positions_, embeddings);
  cost.take({std::move(patches), std::move(embeddings)});
  const std::int64_t rows = shape.micro_batch * config_.tokens();
  cost.boundary = {{{rows / tensor_.count, config_.width}, shape.compute_bytes}};
  // The projected patches, forward until the positions are added; their gradient, and that of the
  // sequence, backward. Of several ranks' rows, all before the own ones are taken.
  const Bytes all_rows = tensor_.whole() ? 0 : rows * config_.width * shape.compute_bytes;
  cost.forward_workspace = embedded + all_rows;
  cost.backward_workspace = embedded + cost.boundary_bytes() + all_rows;
  return cost;
}

VitHead::VitHead(const VitConfig& config, const AxisPart& tensor, bool joined)
    : name_("classifier"),
      config_(config),
      tensor_(tensor),
      joined_(joined),
      norm_("vit.layernorm", config.width, config.norm_eps),
      classifier_({{name_, config.classes}}, {config.width}, initial(config)) {}

std::vector<Parameter*> VitHead::parameters() {
  std::vector<Parameter*> list;
  norm_.add_parameters(list);
  classifier_.add_parameters(list);
  return matrices_first(std::move(list));
}

at::Tensor VitHead::logits(const Tensors& input, Communicator* ranks) {
  DSTRAIN_CHECK(input.size() == (joined_ ? 1u : 2u), name_ + ": wrong number of inputs");
  const std::int64_t batch = input[0].size(0) * tensor_.count / config_.tokens();
  Tensors tokens;  // the norm acts on each by itself, so only the class token needs it
  if (ranks != nullptr) {
    const at::Tensor rows =
        at::arange(batch, input[0].options().dtype(at::kLong)) * config_.tokens();
    for (const at::Tensor& own : input) tokens.push_back(ops::collect_rows(own, rows, ranks));
  } else {
    for (const at::Tensor& own : input) tokens.push_back(ops::first_token(own, batch));
  }
  const auto delta = joined_ ? std::nullopt : std::optional<at::Tensor>(tokens[1]);
  return classifier_.forward(norm_.forward(tokens[0], delta).second);
}

Tensors VitHead::forward(const Tensors& input, const Batch& batch, const BlockContext& context) {
  Communicator* ranks = context.peers.along(CommAxis::tensor);
  // A sample of weight 0 adds nothing to loss, gradients and totals: one rank counts it.
  const at::Tensor weights =
      ranks == nullptr ? batch.weights : batch.weights * (ranks->rank() == 0 ? 1 : 0);
  return {class_loss(logits(input, ranks), batch, weights, context)};
}

BlockCost VitHead::cost(const BatchShape& shape) const {
  const Bytes token = shape.micro_batch * config_.width * shape.compute_bytes;
  const Bytes stream = token * config_.tokens() / tensor_.count;
  const Bytes logits = shape.micro_batch * config_.classes * shape.compute_bytes;
  const LayerCost loss = class_loss_cost(shape.micro_batch, config_.classes, shape.compute_bytes);
  BlockCost cost;
  cost.name = name_;
  // Sum and output of the norm with its statistics; logits and their log-sum-exp.
  LayerCost classes = classifier_.cost(shape.micro_batch, shape.compute_bytes, true);
  classes.saved_bytes += loss.saved_bytes;
  // Several ranks keep the numbers of the class tokens' rows, and weights of their own.
  if (!tensor_.whole())
    classes.saved_bytes +=
        shape.micro_batch * (static_cast<Bytes>(sizeof(std::int64_t)) + kFloatBytes);
  cost.take({norm_.cost(shape.micro_batch, 2 * token), std::move(classes)});
  cost.boundary = {{{}, kFloatBytes}};
  // The class tokens of both inputs and the loss's terms; backward, the gradients of both inputs
  // and of what led to them.
  for (const ExchangePass pass : {ExchangePass::forward, ExchangePass::backward}) {
    for (int input = 0; !tensor_.whole() && input < 2; ++input)
      cost.exchanges.push_back({.op = CommOp::all_reduce,
                                .axis = CommAxis::tensor,
                                .bytes = token,
                                .width = shape.compute_bytes,
                                .pass = pass});
  }
  cost.forward_workspace = 2 * token + 4 * shape.micro_batch * kFloatBytes;
  cost.backward_workspace = 2 * stream + 2 * token + logits;
  return cost;
}

Model vit_model(const ModelConfig& recipe, const ModelFamily& family, const ModelInputs& inputs) {
  const VitConfig config = vit_config(recipe, family, inputs.classes, inputs.class_names);
  const AxisPart& tensor = inputs.splits.tensor;
  require_tensor_degree(config, tensor);
  if (config.drop_path > 0 && !tensor.whole())
    throw Error(ErrorKind::usage,
                fmt::format("model.drop_path: {}, but {} tensor ranks share the rows of a sample",
                            config.drop_path, tensor.count),
                "use parallel.tensor: 1, or model.drop_path: 0");
  Blocks blocks;
  blocks.push_back(std::make_unique<VitStem>(config, tensor));
  for (std::int64_t i = 0; i < config.layers; ++i) blocks.push_back(make_layer(config, i, inputs));
  blocks.push_back(std::make_unique<VitHead>(config, tensor, inputs.tile_rows > 0));
  return {.blocks = std::move(blocks),
          .config_json = vit_config_json(config, family),
          .image_size = static_cast<int>(config.image_size),
          .channels = static_cast<int>(config.channels),
          .classes = static_cast<int>(config.classes),
          .class_names = config.labels,
          .notes = config.notes,
          .drops = config.drop_path > 0,
          .tile_rows = inputs.tile_rows,
          .tokens = static_cast<int>(config.tokens())};
}

}  // namespace dstrain
