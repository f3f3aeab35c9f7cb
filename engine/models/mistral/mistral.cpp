#include "engine/models/mistral/mistral.h"

#include <nlohmann/json.hpp>

namespace dstrain {
namespace {

/// What published models have for their own.
struct MistralModel {
  std::string_view name;
  double theta;
  std::int64_t window, positions;
};

constexpr MistralModel kMistralModels[] = {
    {"mistral-7b-v0.1", 1e4, 4096, 32768},
    {"mistral-7b-v0.3", 1e6, 0, 32768},
    {"mistral-nemo-12b", 1e6, 0, 131072},
    {"mistral-small-24b", 1e8, 0, 32768},
};

void specialize_mistral(std::string_view name, DecoderConfig& config) {
  for (const MistralModel& model : kMistralModels) {
    if (name != model.name) continue;
    config.rope_theta = model.theta;
    config.window = model.window;
    config.positions = model.positions;
  }
}

nlohmann::json mistral_fields(const DecoderConfig& config) {
  return {
      {"sliding_window", window_field(config)},
  };
}

DecoderConfig published_mistral() {
  DecoderConfig config;
  config.norm_eps = 1e-5;
  config.window = 4096;
  config.positions = 32768;
  config.begin_token = 1;
  config.end_token = 2;
  return config;
}

}  // namespace

const DecoderKind kMistral = {.model_class = "MistralForCausalLM",
                              .published = published_mistral(),
                              .specialize = specialize_mistral,
                              .fields = mistral_fields,
                              .windowed = true};

}  // namespace dstrain
