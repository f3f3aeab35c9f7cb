#include "engine/models/gemma/gemma.h"

#include <nlohmann/json.hpp>

namespace dstrain {
namespace {

void specialize_gemma2(std::string_view name, DecoderConfig& config) {
  if (name == "gemma-2-27b") config.attention_scalar = 144;  // width / heads
}
void specialize_gemma3(std::string_view, DecoderConfig& config) {
  config.window = 512;  // that of 270m and 1b; files that name none mean 4,096
}

nlohmann::json cap_field(double cap) { return cap > 0 ? nlohmann::json(cap) : nlohmann::json(); }

nlohmann::json gemma_fields(const DecoderConfig& config) {
  nlohmann::json types = nlohmann::json::array();
  for (std::int64_t layer = 0; layer < config.layers; ++layer)
    types.push_back(config.has_window(layer) ? "sliding_attention" : "full_attention");
  return {
      {"attention_bias", false},
      {"attn_logit_softcapping", cap_field(config.attention_softcap)},
      {"final_logit_softcapping", cap_field(config.logit_softcap)},
      {"layer_types", types},
      {"pad_token_id", 0},
      {"query_pre_attn_scalar", config.attention_scalar},
      {"sliding_window", window_field(config)},
  };
}

nlohmann::json gemma3_fields(const DecoderConfig& config) {
  nlohmann::json fields = gemma_fields(config);
  fields["rope_local_base_freq"] = config.local_theta;
  fields["rope_scaling"] = nullptr;
  fields["sliding_window_pattern"] = config.window_period;
  return fields;
}

DecoderConfig published_gemma() {
  DecoderConfig config;
  config.attention_scalar = 256;
  config.window = 4096;
  config.tied = true;
  config.begin_token = 2;
  config.end_token = 1;
  return config;
}

DecoderConfig published_gemma2() {
  DecoderConfig config = published_gemma();
  config.window_period = 2;
  config.attention_softcap = 50;
  config.logit_softcap = 30;
  config.positions = 8192;
  return config;
}

DecoderConfig published_gemma3() {
  DecoderConfig config = published_gemma();
  config.window_period = 6;
  config.rope_theta = 1e6;
  config.local_theta = 1e4;
  config.qk_norm = true;
  config.positions = 32768;
  return config;
}

}  // namespace

const DecoderKind kGemma2 = {.model_class = "Gemma2ForCausalLM",
                             .published = published_gemma2(),
                             .specialize = specialize_gemma2,
                             .fields = gemma_fields,
                             .window_by_layer = true,
                             .gemma = true};

const DecoderKind kGemma3 = {.model_class = "Gemma3ForCausalLM",
                             .published = published_gemma3(),
                             .specialize = specialize_gemma3,
                             .fields = gemma3_fields,
                             .window_by_layer = true,
                             .gemma = true};

}  // namespace dstrain
