#include "engine/models/llama/llama.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace dstrain {
namespace {

void specialize_llama(std::string_view name, DecoderConfig& config) {
  config.tied = name.starts_with("llama-3.2");
  if (name.starts_with("llama-3.2")) config.rope_scaling.factor = 32;
  if (name.starts_with("llama-3.1")) config.rope_scaling.factor = 8;
}

nlohmann::json llama_fields(const DecoderConfig& config) {
  const std::int64_t positions = config.rope_scaling.factor > 0 ? 131072 : 8192;
  return {
      {"attention_bias", false}, {"bos_token_id", 128000},
      {"eos_token_id", 128001},  {"max_position_embeddings", std::max(positions, config.sequence)},
      {"mlp_bias", false},       {"pretraining_tp", 1},
  };
}

DecoderConfig published_llama() {
  DecoderConfig config;
  config.rope_theta = 5e5;
  config.norm_eps = 1e-5;
  return config;
}

}  // namespace

const DecoderKind kLlama = {.model_class = "LlamaForCausalLM",
                            .published = published_llama(),
                            .specialize = specialize_llama,
                            .fields = llama_fields};

}  // namespace dstrain
