#include "engine/models/vit/model.h"

#include <ATen/TensorOperators.h>
#include <fmt/format.h>

#include <utility>

#include "engine/base/error.h"
#include "engine/models/tensor_rule.h"
#include "engine/nn/attention.h"
#include "engine/nn/class_loss.h"
#include "engine/nn/gated_mlp.h"
#include "engine/nn/mlp.h"
#include "engine/nn/parameter_order.h"
#include "engine/nn/pre_norm_layer.h"

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
    : LayeredBlock(Works::on_tokens),
      name_(kind.names.stem),
      shape_{.image_size = config.image_size,
             .patch_size = config.patch_size,
             .channels = config.channels,
             .position_side = config.position_side(),
             .first_tokens = kind.first_tokens()},
      embedding_(shape_,
                 Linear({{kind.names.projection, config.width}},
                        {config.channels, config.patch_size, config.patch_size}, initial(config),
                        kind.patch_bias),
                 embedding(first_token_pieces(config, kind), config.init_std),
                 embedding(position_pieces(config, kind), config.init_std), tensor),
      norm_(norm_named(kind.names.first_norm, config)) {
  if (kind.unread == nullptr) return;
  for (const UnreadTensor& tensor_of_files : kind.unread(config))
    unread_.push_back({.part = {tensor_of_files.name, tensor_of_files.shape},
                       .initial = tensor_of_files.initial});
}

std::vector<Parameter*> VitStem::parameters() {
  std::vector<Parameter*> list;
  embedding_.add_parameters(list);
  if (norm_) norm_->add_parameters(list);
  return matrices_first(std::move(list));
}

std::vector<BlockState*> VitStem::state() {
  std::vector<BlockState*> list;
  for (BlockState& state : unread_) list.push_back(&state);
  return list;
}

std::vector<BoundaryTensor> VitStem::input_sizes(const BatchShape& shape) const {
  return {{{shape.micro_batch, shape_.channels, shape_.image_size, shape_.image_size},
           shape.compute_bytes}};
}

std::vector<Features> VitStem::run(LayerPass& pass, const std::vector<Features>& input) {
  const Features rows = embedding_.run(pass, input.at(0));
  return {norm_ ? norm_->run(pass, {rows}) : rows};
}

VitHead::VitHead(const VitConfig& config, const VitKind& kind, const AxisPart& tensor, bool joined)
    : LayeredBlock(Works::on_tokens),
      name_("classifier"),
      width_(config.width),
      pooling_(kind.pooling),
      sample_{.tokens = kind.tokens(config), .first = kind.first_tokens(), .tensor = tensor},
      joined_(joined),
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

Tensors VitHead::input_of(const Tensors& input, const Batch&) const {
  DSTRAIN_CHECK(input.size() == (joined_ ? 1u : 2u), name_ + ": wrong number of inputs");
  return input;
}

std::vector<BoundaryTensor> VitHead::input_sizes(const BatchShape& shape) const {
  const std::int64_t rows = shape.micro_batch * sample_.tokens / sample_.tensor.count;
  return std::vector<BoundaryTensor>(joined_ ? 1 : 2, {{rows, width_}, shape.compute_bytes});
}

Features VitHead::of_two_heads(LayerPass& pass, const std::vector<Features>& input) {
  const std::int64_t batch = input[0].tensor.size(0) / sample_.tokens;
  std::vector<Features> tokens;
  for (const Features& rows : input)
    tokens.push_back({.tensor = rows.tensor.view({batch, sample_.tokens, width_})
                                    .narrow(1, 0, 2)
                                    .reshape({2 * batch, width_})});
  const at::Tensor normed = norm_->run(pass, tokens).tensor.view({batch, 2, width_});
  const auto of = [&](int token) { return normed.select(1, token).contiguous(); };
  return {.tensor = (classifier_.forward(of(0)) + second_->forward(of(1))) / 2};
}

Features VitHead::run_logits(LayerPass& pass, const std::vector<Features>& input) {
  if (second_ && pass.costs == nullptr) return of_two_heads(pass, input);
  if (pooling_ == VitPooling::first_token) {
    // The norm acts on each token by itself, so that only the class token needs it.
    const Features token =
        norm_->run(pass, first_token(pass, input, sample_), /*keeps_output=*/true);
    if (second_) (void)second_->run(pass, token);
    return classifier_.run(pass, token);
  }
  const Features rows = norm_ ? norm_->run(pass, input) : sum_of(pass, input);
  return classifier_.run(pass, mean_token(pass, rows, sample_, pooling_ == VitPooling::both));
}

at::Tensor VitHead::logits(const Tensors& input) {
  std::vector<Features> features;
  for (const at::Tensor& tensor : input_of(input, {})) features.push_back({.tensor = tensor});
  LayerPass pass;
  return run_logits(pass, features).tensor;
}

std::vector<Features> VitHead::run(LayerPass& pass, const std::vector<Features>& input) {
  return {class_loss(pass, run_logits(pass, input), sample_.tensor)};
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
