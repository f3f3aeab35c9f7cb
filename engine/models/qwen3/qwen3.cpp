#include "engine/models/qwen3/qwen3.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace dstrain {
namespace {

void specialize_qwen3(std::string_view name, DecoderConfig& config) {
  config.tied = name != "qwen3-8b";
}

nlohmann::json qwen3_fields(const DecoderConfig& config) {
  return {
      {"attention_bias", false},
      {"bos_token_id", 151643},
      {"eos_token_id", 151645},
      {"max_position_embeddings", std::max<std::int64_t>(40960, config.sequence)},
      {"max_window_layers", config.layers},
      {"use_sliding_window", false},
  };
}

DecoderConfig published_qwen3() {
  DecoderConfig config;
  config.rope_theta = 1e6;
  config.qk_norm = true;
  return config;
}

}  // namespace

const DecoderKind kQwen3 = {.model_class = "Qwen3ForCausalLM",
                            .published = published_qwen3(),
                            .specialize = specialize_qwen3,
                            .fields = qwen3_fields};

}  // namespace dstrain
