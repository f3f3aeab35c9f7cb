#include "engine/models/llama/llama.h"

#include <nlohmann/json.hpp>

namespace dstrain {
namespace {

/// What published models that begin so have for their own.
struct LlamaModel {
  std::string_view prefix;
  double theta, slowed;  ///< RopeScaling::factor
  bool tied;
  std::int64_t positions, begin_token, end_token;
  double init_std = 0.02;
};

constexpr LlamaModel kLlamaModels[] = {
    {"llama-3.2", 5e5, 32, true, 131072, 128000, 128001},
    {"llama-3.1", 5e5, 8, false, 131072, 128000, 128001},
    {"llama-3", 5e5, 0, false, 8192, 128000, 128001},
    {"llama-2", 1e4, 0, false, 4096, 1, 2},
    {"tinyllama", 1e4, 0, false, 2048, 1, 2},
    {"smollm2-1.7b", 1.3e5, 0, true, 8192, 0, 0},
    {"smollm2", 1e5, 0, true, 8192, 0, 0, 1.0 / 24},
};

void specialize_llama(std::string_view name, DecoderConfig& config) {
  for (const LlamaModel& model : kLlamaModels) {
    if (!name.starts_with(model.prefix)) continue;
    config.rope_theta = model.theta;
    config.rope_scaling.factor = model.slowed;
    config.tied = model.tied;
    config.positions = model.positions;
    config.begin_token = model.begin_token;
    config.end_token = model.end_token;
    config.init_std = model.init_std;
    return;
  }
}

nlohmann::json llama_fields(const DecoderConfig&) {
  return {
      {"attention_bias", false},
      {"mlp_bias", false},
      {"pretraining_tp", 1},
  };
}

DecoderConfig published_llama() {
  DecoderConfig config;
  config.rope_theta = 5e5;
  config.norm_eps = 1e-5;
  config.positions = 8192;
  config.begin_token = 128000;
  config.end_token = 128001;
  return config;
}

}  // namespace

const DecoderKind kLlama = {.model_class = "LlamaForCausalLM",
                            .published = published_llama(),
                            .specialize = specialize_llama,
                            .fields = llama_fields};

}  // namespace dstrain
