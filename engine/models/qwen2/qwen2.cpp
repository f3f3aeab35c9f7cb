#include "engine/models/qwen2/qwen2.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace dstrain {
namespace {

void specialize_qwen2(std::string_view name, DecoderConfig& config) {
  config.tied = name != "qwen2.5-7b" && name != "qwen2.5-14b";
}

nlohmann::json qwen2_fields(const DecoderConfig& config) {
  return {
      {"bos_token_id", 151643},
      {"eos_token_id", 151643},
      {"max_position_embeddings", std::max<std::int64_t>(32768, config.sequence)},
      {"max_window_layers", config.layers},
      {"use_sliding_window", false},
  };
}

DecoderConfig published_qwen2() {
  DecoderConfig config;
  config.rope_theta = 1e6;
  config.qkv_bias = true;
  return config;
}

}  // namespace

const DecoderKind kQwen2 = {.model_class = "Qwen2ForCausalLM",
                            .published = published_qwen2(),
                            .specialize = specialize_qwen2,
                            .fields = qwen2_fields};

}  // namespace dstrain
