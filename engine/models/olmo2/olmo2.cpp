#include "engine/models/olmo2/olmo2.h"

#include <nlohmann/json.hpp>

namespace dstrain {
namespace {

void specialize_olmo2(std::string_view, DecoderConfig&) {}

nlohmann::json olmo2_fields(const DecoderConfig&) {
  return {
      {"attention_bias", false},
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
