#include "engine/models/decoder/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/base/error.h"
#include "engine/models/language_head.h"
#include "engine/models/tensor_rule.h"
#include "engine/models/token_stem.h"
#include "engine/nn/attention.h"
#include "engine/nn/gated_mlp.h"
#include "engine/nn/moe.h"
#include "engine/nn/pre_norm_layer.h"
#include "engine/nn/rms_norm.h"

namespace dstrain {
namespace {

/// What travels between the layers of published models, which were trained in bf16, goes beyond the
/// range of fp16 (QwenLM/Qwen3 issues 826 and 868). In fp16 it is smaller by this power of two, so
/// that up to 4.2 million is finite. Norms take the scale out again, as their epsilon has it, too:
/// what a layer computes and its gradients are the same.
constexpr double kFp16StreamScale = 1.0 / 64;

std::string layer_name(std::int64_t index) { return fmt::format("model.layers.{}", index); }

InitialWeights initial(const DecoderConfig& config) { return {Init::normal, config.init_std}; }

ops::RmsWeight norm_weights(const DecoderKind& kind) {
  return kind.gemma ? ops::RmsWeight::less_one : ops::RmsWeight::factor;
}

AttentionNames decoder_attention_names(const std::string& layer, const DecoderConfig& config,
                                       const DecoderKind& kind) {
  const std::string attention = layer + ".self_attn";
  if (kind.joined) return {.qkv = {attention + ".qkv_proj"}, .output = attention + ".o_proj"};
  return {.qkv = {attention + ".q_proj", attention + ".k_proj", attention + ".v_proj"},
          .output = attention + ".o_proj",
          .query_norm = config.qk_norm ? attention + ".q_norm" : "",
          .key_norm = config.qk_norm ? attention + ".k_norm" : "",
          .norms_all_heads = kind.norms_after,
          .norm_weights = norm_weights(kind)};
}

ops::AttentionShape attention_shape(const DecoderConfig& config, const ModelInputs& inputs,
                                    std::int64_t layer) {
  const bool has_window = config.has_window(layer), local = has_window && config.local_theta > 0;
  // A window that no sample fills hides nothing, and not every library has windows.
  const bool fits = inputs.sequence > 0 && inputs.sequence <= config.window;
  const std::int64_t scalar = config.attention_scalar;
  return {.heads = config.heads,
          .kv_heads = config.kv_heads,
          .head_dim = config.head_dim,
          .causal = true,
          .rope_theta = local ? config.local_theta : config.rope_theta,
          .rope_scaling = local ? ops::RopeScaling{} : config.rope_scaling,
          .rotary = config.rotary(),
          .window = has_window && !fits ? config.window : 0,
          .scale = scalar > 0 ? 1 / std::sqrt(static_cast<double>(scalar)) : 0,
          .softcap = config.attention_softcap};
}

MoeShape moe_shape(const DecoderConfig& config, const ModelInputs& inputs) {
  return {.width = config.width,
          .expert_width = config.expert_width,
          .shared_width = config.shared_width,
          .splits = inputs.splits,
          .planned_load = inputs.experts.planned_load,
          .router = {.experts = config.experts,
                     .chosen = config.experts_per_token,
                     .normalize = config.norm_topk}};
}

GatedMlpNames mlp_names(const std::string& layer, const DecoderKind& kind) {
  if (kind.joined)
    return {.gate = layer + ".mlp.gate_up_proj", .up = "", .down = layer + ".mlp.down_proj"};
  return {.gate = layer + ".mlp.gate_proj",
          .up = layer + ".mlp.up_proj",
          .down = layer + ".mlp.down_proj"};
}

/// Error{usage} where ranks cannot share the layers evenly.
void check_ranks(const DecoderConfig& config, const ModelFamily& family, const DecoderKind& kind,
                 const Splits& splits) {
  if (kind.joined && !splits.tensor.whole())
    throw Error(ErrorKind::usage,
                fmt::format("parallel.tensor: {}, but files of {} have query, key and value in one "
                            "tensor, which dstrain does not cut",
                            splits.tensor.count, family.title),
                "use parallel.tensor: 1");
  if (kind.norms_after && !splits.tensor.whole())
    throw Error(ErrorKind::usage,
                fmt::format("parallel.tensor: {}, but {} norms queries and keys over all heads, "
                            "which dstrain does not cut",
                            splits.tensor.count, family.title),
                "use parallel.tensor: 1");
  if (config.logit_softcap > 0 && !splits.tensor.whole())
    throw Error(
        ErrorKind::usage,
        fmt::format("parallel.tensor: {}, but {} caps its logits (final_logit_softcapping), "
                    "which dstrain does not cut",
                    splits.tensor.count, family.title),
        "use parallel.tensor: 1");
  ModelSizes cut = config;
  if (config.expert_layers() == config.layers) cut.mlp_width = 0;
  require_tensor_degree(cut, splits.tensor);
  if (config.expert_layers() > 0) require_expert_degree(config.experts, splits);
}

/// Epsilon of a norm whose input is what travels between blocks.
double stream_eps(const DecoderConfig& config) {
  return config.norm_eps * config.stream_scale * config.stream_scale;
}

template <class FeedForward>
std::unique_ptr<Block> make_layer(const DecoderConfig& config, const DecoderKind& kind,
                                  const ModelInputs& inputs, std::int64_t index, FeedForward mlp) {
  const std::string name = layer_name(index);
  SelfAttention attention(decoder_attention_names(name, config, kind), config.width,
                          attention_shape(config, inputs, index), initial(config),
                          {.qkv = config.qkv_bias, .output = false}, config.norm_eps,
                          inputs.splits);
  if (!kind.norms_after) {
    attention.scale_output(config.stream_scale);
    mlp.scale_output(config.stream_scale);
  }
  const auto norm = [&](const char* module) {
    return RmsNorm(name + module, config.width, stream_eps(config), norm_weights(kind));
  };
  BranchNorms<RmsNorm> behind;
  if (kind.gemma)
    behind = {.attention = norm(".post_attention_layernorm"),
              .mlp = norm(".post_feedforward_layernorm")};
  const char* first = kind.norms_after ? ".post_attention_layernorm" : ".input_layernorm";
  const char* second = kind.norms_after ? ".post_feedforward_layernorm"
                       : kind.gemma     ? ".pre_feedforward_layernorm"
                                        : ".post_attention_layernorm";
  return std::make_unique<PreNormLayer<RmsNorm, FeedForward>>(
      LayerPlace{.name = name,
                 .width = config.width,
                 .tokens = config.sequence,
                 .first = index == 0,
                 .tensor = inputs.splits.tensor,
                 .tile_rows = inputs.tile_rows,
                 .norms_after = kind.norms_after},
      norm(first), std::move(attention), norm(second), std::move(mlp), std::move(behind));
}

std::unique_ptr<Block> make_layer(const DecoderConfig& config, const DecoderKind& kind,
                                  std::int64_t index, const ModelInputs& inputs) {
  const std::string name = layer_name(index);
  const AxisPart& tensor = inputs.splits.tensor;
  if (!config.has_experts(index)) {
    return make_layer(
        config, kind, inputs, index,
        GatedMlp(mlp_names(name, kind), config.width, config.mlp_width, initial(config), tensor,
                 {.gate = kind.gemma ? ops::GateActivation::gelu : ops::GateActivation::silu}));
  }
  const MoeLosses losses{.balance = inputs.experts.balance_loss,
                         .z = inputs.experts.z_loss,
                         .layers = config.expert_layers(),
                         .tokens = std::max<std::int64_t>(config.sequence, 1)};
  return make_layer(config, kind, inputs, index,
                    Moe({.layer = fmt::format("{}.{}", name, kind.experts.layer),
                         .gate = kind.experts.gate,
                         .up = kind.experts.up,
                         .down = kind.experts.down},
                        moe_shape(config, inputs), losses, initial(config)));
}

}  // namespace

Model decoder_model(DecoderConfig config, const ModelFamily& family, const DecoderKind& kind,
                    const ModelInputs& inputs) {
  check_ranks(config, family, kind, inputs.splits);
  if (inputs.fp16 && kind.gemma)
    throw Error(ErrorKind::usage,
                fmt::format("precision.compute: fp16, but what travels between the layers of {} "
                            "goes beyond its range",
                            family.title),
                "use precision.compute: bf16, or fp32");
  config.sequence = inputs.sequence;
  std::string config_json = decoder_config_json(config, family, kind);
  config.sequence = inputs.own_tokens();
  // What norms behind branches make does not grow.
  if (inputs.fp16 && !kind.norms_after) config.stream_scale = kFp16StreamScale;
  const LanguageShape shape = language_shape(config, inputs, config.logit_softcap);
  const double embedding_scale =
      kind.gemma ? std::sqrt(static_cast<double>(config.width)) : config.stream_scale;
  auto stem =
      std::make_unique<TokenStem>("model.embed_tokens", shape, initial(config), embedding_scale);
  Blocks blocks = language_blocks(
      std::move(stem), config.layers,
      [&](std::int64_t i) { return make_layer(config, kind, i, inputs); },
      RmsNorm("model.norm", config.width, stream_eps(config), norm_weights(kind)), shape,
      config.tied, initial(config));
  Model model = language_model(std::move(blocks), config, inputs, std::move(config_json),
                               std::move(config.notes));
  if (config.expert_layers() > 0) model.tile_rows = 0;
  return model;
}

}  // namespace dstrain
