#include "engine/models/mixtral/mixtral.h"

#include <nlohmann/json.hpp>

namespace dstrain {
namespace {

void specialize_mixtral(std::string_view name, DecoderConfig& config) {
  if (name == "mixtral-8x22b") config.positions = 65536;
}

nlohmann::json mixtral_fields(const DecoderConfig& config) {
  return {
      {"output_router_logits", false},
      {"router_jitter_noise", 0.0},
      {"sliding_window", window_field(config)},
  };
}

DecoderConfig published_mixtral() {
  DecoderConfig config;
  config.rope_theta = 1e6;
  config.norm_eps = 1e-5;
  config.norm_topk = true;
  config.positions = 32768;
  config.begin_token = 1;
  config.end_token = 2;
  return config;
}

}  // namespace

const DecoderKind kMixtral = {
    .model_class = "MixtralForCausalLM",
    .published = published_mixtral(),
    .specialize = specialize_mixtral,
    .fields = mixtral_fields,
    .windowed = true,
    .experts = {.layer = "block_sparse_moe", .gate = "w1", .up = "w3", .down = "w2"}};

}  // namespace dstrain
