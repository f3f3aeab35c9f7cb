#include "engine/models/vit/model.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/base/error.h"
#include "engine/comm/communicator.h"
#include "engine/kernels/ops.h"
#include "engine/kernels/tensor/ops_tensor.h"
#include "engine/models/tensor_rule.h"
#include "engine/nn/attention.h"
#include "engine/nn/class_loss.h"
#include "engine/nn/gated_mlp.h"
#include "engine/nn/layer_cost.h"
#include "engine/nn/mlp.h"
#include "engine/nn/parameter_order.h"
#include "engine/nn/pre_norm_layer.h"
#include "engine/nn/tensor_exchanges.h"

namespace dstrain {
namespace {

Parameter embedding(std::vector<Piece> pieces, double init_std) {
  Parameter parameter;
  if (!pieces.empty()) parameter.hold(std::move(pieces));
  parameter.init = Init::truncated_normal;
  parameter.init_std = init_std;
  return parameter;
}

std::vector<Piece> first_token_pieces(const VitConfig& config, const VitKind& kind) {
  const std::int64_t width = config.width;
  std::vector<Piece> pieces;
  for (const std::string& name : kind.names.first_tokens)
    pieces.emplace_back(name,
                        kind.flat ? std::vector{width} : std::vector<std::int64_t>{1, 1, width});
  return pieces;
}

std::vector<Piece> position_pieces(const VitConfig& config, const VitKind& kind) {
  const std::int64_t rows = kind.first_tokens() + config.position_side() * config.position_side();
  std::vector<std::int64_t> shape = {1, rows, config.width};
  if (kind.flat) shape = {rows, config.width};
  return {Piece(kind.names.positions, std::move(shape))};
}

InitialWeights initial(const VitConfig& config) {
  return {Init::truncated_normal, config.init_std};
}

std::optional<LayerNorm> norm_named(const std::string& name, const VitConfig& config) {
  if (name.empty()) return std::nullopt;
  return LayerNorm(name, config.width, config.norm_eps);
}

AttentionNames vit_attention_names(const VitNames& names, const std::string& layer) {
  std::vector<std::string> qkv;
  for (const std::string& name : names.qkv) qkv.push_back(layer + name);
  return {.qkv = std::move(qkv), .output = layer + names.output};
}

ops::AttentionShape attention_shape(const VitConfig& config) {
  return {.heads = config.heads, .kv_heads = config.heads, .head_dim = config.width / config.heads};
}

std::unique_ptr<Block> make_layer(const VitConfig& config, const VitKind& kind, std::int64_t index,
                                  const ModelInputs& inputs) {
  const VitNames& names = kind.names;
  const std::string name = fmt::format("{}{}", names.layer, index), prefix = name + ".";
  const AxisPart& tensor = inputs.splits.tensor;
  LayerPlace place{
      .name = name,
      .width = config.width,
      .tokens = kind.tokens(config),
      .first = index == 0,
      // A head of the first token returns the gradients of its two inputs apart, every
      // layer one tensor for both.
      .gradients_apart = index + 1 == config.layers && kind.pooling == VitPooling::first_token,
      .tensor = tensor,
      .tile_rows = inputs.tile_rows,
      .drop_path = config.layers > 1 ? config.drop_path * static_cast<double>(index) /
                                           static_cast<double>(config.layers - 1)
                                     : 0,
      .first_scale = config.first_scale};
  for (std::size_t i = 0; i < names.scales.size(); ++i) {
    if (!names.scales.at(i).empty()) place.scales.at(i) = prefix + names.scales.at(i);
  }
  const auto layer = [&](auto mlp) -> std::unique_ptr<Block> {
    return std::make_unique<PreNormLayer<LayerNorm, decltype(mlp)>>(
        std::move(place), LayerNorm(prefix + names.norm_before, config.width, config.norm_eps),
        SelfAttention(vit_attention_names(names, prefix), config.width, attention_shape(config),
                      initial(config), {}, 0, {.tensor = tensor}),
        LayerNorm(prefix + names.norm_after, config.width, config.norm_eps), std::move(mlp));
  };
  if (config.gated)
    return layer(
        GatedMlp({.gate = prefix + names.gate_up, .up = {}, .down = prefix + names.gated_down},
                 config.width, config.mlp_width, initial(config), tensor, {.has_biases = true}));
  return layer(Mlp({.up = prefix + names.up, .down = prefix + names.down}, config.width,
                   config.mlp_width, config.gelu, initial(config), tensor));
}

void require_vit_splits(const VitConfig& config, const ModelFamily& family,
                        const AxisPart& tensor) {
  require_tensor_degree(config, tensor);
  if (tensor.whole()) return;
  if (config.drop_path > 0)
    throw Error(ErrorKind::usage,
                fmt::format("model.drop_path: {}, but {} tensor ranks share the rows of a sample",
                            config.drop_path, tensor.count),
                "use parallel.tensor: 1, or model.drop_path: 0");
  if (config.gated)
    throw Error(ErrorKind::usage,
                fmt::format("parallel.tensor: {}, but files of this {} have gate and up of an MLP "
                            "in one tensor, which dstrain does not cut",
                            tensor.count, family.title),
                "use parallel.tensor: 1");
}

}  // namespace

VitStem::VitStem(const VitConfig& config, const VitKind& kind, const AxisPart& tensor)
    : name_(kind.names.stem),
      config_(config),
      tensor_(tensor),
      tokens_(kind.tokens(config)),
      first_(kind.first_tokens()),
      first_tokens_(embedding(first_token_pieces(config, kind), config.init_std)),
      positions_(embedding(position_pieces(config, kind), config.init_std)),
      projection_({{kind.names.projection, config.width}},
                  {config.channels, config.patch_size, config.patch_size}, initial(config),
                  kind.patch_bias),
      norm_(norm_named(kind.names.first_norm, config)) {
  if (kind.unread == nullptr) return;
  for (const UnreadTensor& tensor_of_files : kind.unread(config))
    unread_.push_back({.part = {tensor_of_files.name, tensor_of_files.shape},
                       .initial = tensor_of_files.initial});
}

std::vector<Parameter*> VitStem::parameters() {
  std::vector<Parameter*> list;
  if (first_ > 0) list.push_back(&first_tokens_);
  list.push_back(&positions_);
  projection_.add_parameters(list);
  if (norm_) norm_->add_parameters(list);
  return matrices_first(std::move(list));
}

std::vector<BlockState*> VitStem::state() {
  std::vector<BlockState*> list;
  for (BlockState& state : unread_) list.push_back(&state);
  return list;
}

Tensors VitStem::forward(const Tensors&, const Batch& batch, const BlockContext&) {
  const std::int64_t used = config_.side() * config_.patch_size;
  const at::Tensor patches =
      ops::patchify(batch.images.narrow(2, 0, used).narrow(3, 0, used), config_.patch_size);
  const at::Tensor rows = ops::embed_sequence(
      projection_.forward(patches), batch.images.size(0), first_ > 0 ? &first_tokens_ : nullptr,
      positions_, {.from = config_.position_side(), .to = config_.side()});
  const at::Tensor own = ops::own_rows(rows, tensor_);
  return {norm_ ? norm_->forward(own, std::nullopt).second : own};
}

BlockCost VitStem::cost(const BatchShape& shape) {
  const std::int64_t patch_rows = shape.micro_batch * config_.patches();
  const std::int64_t pixels = config_.channels * config_.patch_size * config_.patch_size;
  const Bytes embedded = patch_rows * config_.width * shape.compute_bytes;
  BlockCost cost;
  cost.name = name_;
  LayerCost patches = projection_.cost(patch_rows, shape.compute_bytes, true);
  patches.saved_bytes +=
      patch_rows * pixels * shape.compute_bytes;  // rows of patches, for the weight's gradient
  LayerCost embeddings;
  const std::string& positions = positions_.parts.front().name;
  if (first_ > 0) {
    embeddings.name = first_tokens_.parts.front().name + ", ";
    count(first_tokens_, embeddings);
    embeddings.name += positions.substr(positions.rfind("position"));
  } else {
    embeddings.name = positions;
  }
  count(positions_, embeddings);
  const std::int64_t rows = shape.micro_batch * tokens_;
  cost.boundary = {{{rows / tensor_.count, config_.width}, shape.compute_bytes}};
  std::vector<LayerCost> layers = {std::move(patches), std::move(embeddings)};
  if (norm_) layers.push_back(norm_->cost(rows / tensor_.count, cost.boundary_bytes()));
  cost.take(std::move(layers));
  // The projected patches, forward until the positions are added; their gradient, and that of the
  // sequence, backward. Of several ranks' rows, all before the own ones are taken.
  const Bytes all_rows = tensor_.whole() ? 0 : rows * config_.width * shape.compute_bytes;
  // The gradient of a norm's input is one more.
  const Bytes normed = norm_ ? cost.boundary_bytes() : 0;
  // Positions of the files and those that are added, in fp32, and products between them.
  const std::int64_t from = config_.position_side(), to = config_.side();
  const Bytes resized =
      from == to ? 0 : (from * from + 2 * from * to + 2 * to * to) * config_.width * kFloatBytes;
  // The used part of images with a rest is made dense.
  const Bytes used =
      config_.image_size % config_.patch_size == 0 ? 0 : patch_rows * pixels * shape.compute_bytes;
  cost.forward_workspace = std::max({embedded, resized, used}) + all_rows;
  cost.backward_workspace = embedded + cost.boundary_bytes() + normed + all_rows + resized;
  return cost;
}

VitHead::VitHead(const VitConfig& config, const VitKind& kind, const AxisPart& tensor, bool joined)
    : name_("classifier"),
      config_(config),
      pooling_(kind.pooling),
      tensor_(tensor),
      joined_(joined),
      tokens_(kind.tokens(config)),
      first_(kind.first_tokens()),
      norm_(norm_named(kind.names.last_norm, config)),
      classifier_({{name_, config.classes}},
                  {kind.pooling == VitPooling::both ? 2 * config.width : config.width},
                  initial(config)) {
  if (!config.two_heads) return;
  second_.emplace(std::vector<LinearPart>{{"distillation_classifier", config.classes}},
                  std::vector{config.width}, initial(config));
}

std::vector<Parameter*> VitHead::parameters() {
  std::vector<Parameter*> list;
  if (norm_) norm_->add_parameters(list);
  classifier_.add_parameters(list);
  if (second_) second_->add_parameters(list);
  return matrices_first(std::move(list));
}

at::Tensor VitHead::normed_token(const Tensors& input, std::int64_t batch, Communicator* ranks) {
  Tensors tokens;  // the norm acts on each by itself, so only the class token needs it
  if (ranks != nullptr) {
    const at::Tensor rows = at::arange(batch, input[0].options().dtype(at::kLong)) * tokens_;
    for (const at::Tensor& own : input) tokens.push_back(ops::collect_rows(own, rows, ranks));
  } else {
    for (const at::Tensor& own : input) tokens.push_back(ops::first_token(own, batch));
  }
  const auto delta = joined_ ? std::nullopt : std::optional<at::Tensor>(tokens[1]);
  return norm_->forward(tokens[0], delta).second;
}

at::Tensor VitHead::pooled(const Tensors& input, std::int64_t batch, Communicator* ranks) {
  at::Tensor rows;
  if (norm_) {
    rows = norm_->forward(input[0], joined_ ? std::nullopt : std::optional(input[1])).second;
  } else {
    rows = joined_ ? input[0] : input[0] + input[1];
  }
  return ops::mean_token(ops::all_gather_rows(rows, ranks), batch, first_,
                         pooling_ == VitPooling::both);
}

at::Tensor VitHead::of_two_heads(const Tensors& input, std::int64_t batch) {
  Tensors tokens;
  for (const at::Tensor& rows : input)
    tokens.push_back(rows.view({batch, tokens_, config_.width})
                         .narrow(1, 0, 2)
                         .reshape({2 * batch, config_.width}));
  const at::Tensor normed =
      norm_->forward(tokens[0], joined_ ? std::nullopt : std::optional(tokens[1]))
          .second.view({batch, 2, config_.width});
  const auto of = [&](int token) { return normed.select(1, token).contiguous(); };
  return (classifier_.forward(of(0)) + second_->forward(of(1))) / 2;
}

at::Tensor VitHead::logits(const Tensors& input, Communicator* ranks) {
  DSTRAIN_CHECK(input.size() == (joined_ ? 1u : 2u), name_ + ": wrong number of inputs");
  const std::int64_t batch = input[0].size(0) * tensor_.count / tokens_;
  if (second_) return of_two_heads(input, batch);
  return classifier_.forward(pooling_ == VitPooling::first_token ? normed_token(input, batch, ranks)
                                                                 : pooled(input, batch, ranks));
}

Tensors VitHead::forward(const Tensors& input, const Batch& batch, const BlockContext& context) {
  Communicator* ranks = context.peers.along(CommAxis::tensor);
  // A sample of weight 0 adds nothing to loss, gradients and totals: one rank counts it.
  const at::Tensor weights =
      ranks == nullptr ? batch.weights : batch.weights * (ranks->rank() == 0 ? 1 : 0);
  return {class_loss(logits(input, ranks), batch, weights, context)};
}

LayerCost VitHead::classes_cost(const BatchShape& shape) const {
  // Logits and their log-sum-exp.
  const LayerCost loss = class_loss_cost(shape.micro_batch, config_.classes, shape.compute_bytes);
  LayerCost classes =
      classifier_.cost(shape.micro_batch, shape.compute_bytes, pooling_ == VitPooling::first_token);
  classes.saved_bytes += loss.saved_bytes;
  if (second_) classes += second_->cost(shape.micro_batch, shape.compute_bytes, true);
  // Several ranks have weights of their own.
  if (!tensor_.whole()) classes.saved_bytes += shape.micro_batch * kFloatBytes;
  return classes;
}

BlockCost VitHead::cost(const BatchShape& shape) {
  if (pooling_ != VitPooling::first_token) return cost_of_mean(shape);
  const Bytes token = shape.micro_batch * config_.width * shape.compute_bytes;
  const Bytes stream = token * tokens_ / tensor_.count;
  const Bytes logits = shape.micro_batch * config_.classes * shape.compute_bytes;
  BlockCost cost;
  cost.name = name_;
  LayerCost classes = classes_cost(shape);
  // Several ranks keep the numbers of the class tokens' rows.
  if (!tensor_.whole())
    classes.saved_bytes += shape.micro_batch * static_cast<Bytes>(sizeof(std::int64_t));
  // Sum and output of the norm with its statistics.
  cost.take({norm_->cost(shape.micro_batch, 2 * token), std::move(classes)});
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

BlockCost VitHead::cost_of_mean(const BatchShape& shape) const {
  const std::int64_t rows = shape.micro_batch * tokens_, own = rows / tensor_.count;
  const Bytes whole = rows * config_.width * shape.compute_bytes, stream = whole / tensor_.count,
              gathered = tensor_.whole() ? 0 : whole;
  const Bytes pooled = shape.micro_batch * 2 * config_.width * shape.compute_bytes,
              logits = shape.micro_batch * config_.classes * shape.compute_bytes;
  BlockCost cost;
  cost.name = name_;
  std::vector<LayerCost> layers;
  // The norm keeps the sum, which is the input where nothing is added.
  if (norm_) layers.push_back(norm_->cost(own, joined_ ? 0 : stream));
  layers.push_back(classes_cost(shape));
  cost.take(std::move(layers));
  cost.boundary = {{{}, kFloatBytes}};
  if (!tensor_.whole()) add_all_gather_rows(cost.exchanges, whole, shape.compute_bytes);
  // The normed rows or the sum, of all ranks where there are more, until their mean is taken;
  // backward, the gradient of all of them, and that of the input.
  cost.forward_workspace = stream + gathered + 2 * pooled + 4 * shape.micro_batch * kFloatBytes;
  cost.backward_workspace = whole + (norm_ ? stream : 0) + gathered + 2 * pooled + logits;
  return cost;
}

Model vit_model(const ModelConfig& recipe, const ModelFamily& family, const VitKind& kind,
                const ModelInputs& inputs) {
  VitConfig config = vit_config(recipe, family, kind, inputs.classes, inputs.class_names);
  const AxisPart& tensor = inputs.splits.tensor;
  require_vit_splits(config, family, tensor);
  if (config.two_heads && !inputs.answers) {
    config.two_heads = false;
    config.notes.push_back(
        fmt::format("{}: two heads answer together; training goes on with that of the class token "
                    "alone, as transformers' {}",
                    recipe.weights, kind.model_class));
  }
  Blocks blocks;
  blocks.push_back(std::make_unique<VitStem>(config, kind, tensor));
  for (std::int64_t i = 0; i < config.layers; ++i)
    blocks.push_back(make_layer(config, kind, i, inputs));
  blocks.push_back(std::make_unique<VitHead>(config, kind, tensor, inputs.tile_rows > 0));
  return {.blocks = std::move(blocks),
          .config_json = vit_config_json(config, family, kind),
          .image_size = static_cast<int>(config.image_size),
          .channels = static_cast<int>(config.channels),
          .classes = static_cast<int>(config.classes),
          .class_names = config.labels,
          .notes = config.notes,
          .drops = config.drop_path > 0,
          .tile_rows = inputs.tile_rows,
          .tokens = static_cast<int>(kind.tokens(config))};
}

}  // namespace dstrain
