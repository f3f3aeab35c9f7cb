#include "engine/models/qwen_moe/qwen_moe.h"

#include <nlohmann/json.hpp>

#include "engine/models/qwen2/qwen2.h"
#include "engine/models/qwen3/qwen3.h"

namespace dstrain {
namespace {

void specialize_qwen2_moe(std::string_view name, DecoderConfig& config) {
  // The model made from a dense one goes on with its table, and the two experts of a token share
  // its weight evenly.
  const bool upcycled = name == "qwen2.5-3b-moe";
  config.tied = upcycled;
  config.norm_topk = upcycled;
}

void specialize_qwen3_moe(std::string_view, DecoderConfig& config) { config.norm_topk = true; }

nlohmann::json with_experts(nlohmann::json fields, const DecoderConfig& config) {
  fields["decoder_sparse_step"] = config.sparse_step;
  fields["mlp_only_layers"] = config.dense_layers;
  fields["norm_topk_prob"] = config.norm_topk;
  fields["output_router_logits"] = false;
  return fields;
}

nlohmann::json qwen2_moe_fields(const DecoderConfig& config) {
  return with_experts(kQwen2.fields(config), config);
}

nlohmann::json qwen3_moe_fields(const DecoderConfig& config) {
  return with_experts(kQwen3.fields(config), config);
}

DecoderConfig published_moe(bool qk_norm) {
  DecoderConfig config;
  config.rope_theta = 1e6;
  config.qkv_bias = !qk_norm;
  config.qk_norm = qk_norm;
  return config;
}

}  // namespace

const DecoderKind kQwen2Moe = {.model_class = "Qwen2MoeForCausalLM",
                               .published = published_moe(/*qk_norm=*/false),
                               .specialize = specialize_qwen2_moe,
                               .fields = qwen2_moe_fields};

const DecoderKind kQwen3Moe = {.model_class = "Qwen3MoeForCausalLM",
                               .published = published_moe(/*qk_norm=*/true),
                               .specialize = specialize_qwen3_moe,
                               .fields = qwen3_moe_fields};

}  // namespace dstrain
