#include "engine/models/olmo2/olmo2.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace dstrain {
namespace {

void specialize_olmo2(std::string_view, DecoderConfig&) {}

nlohmann::json olmo2_fields(const DecoderConfig& config) {
  return {
      {"attention_bias", false},
      {"bos_token_id", config.begin_token},
      {"eos_token_id", config.end_token},
      {"max_position_embeddings", std::max(config.positions, config.sequence)},
      {"pad_token_id", 100277},
  };
}

DecoderConfig published_olmo2() {
  DecoderConfig config;
  config.rope_theta = 5e5;
  config.qk_norm = true;
  config.positions = 4096;
  config.begin_token = 100257;
  config.end_token = 100257;
  return config;
}

}  // namespace

const DecoderKind kOlmo2 = {.model_class = "Olmo2ForCausalLM",
                            .published = published_olmo2(),
                            .specialize = specialize_olmo2,
                            .fields = olmo2_fields,
                            .norms_after = true};

}  // namespace dstrain
