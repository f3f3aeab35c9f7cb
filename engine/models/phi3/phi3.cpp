#include "engine/models/phi3/phi3.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace dstrain {
namespace {

/// What published models have for their own.
struct PhiModel {
  std::string_view name;
  double theta, rotary_share;
  bool tied, longrope;
  std::int64_t window, positions, begin_token, end_token;
};

constexpr PhiModel kPhiModels[] = {
    {"phi-3-mini-4k", 1e4, 1, false, false, 2047, 4096, 1, 32000},
    {"phi-3.5-mini", 1e4, 1, false, true, 262144, 4096, 1, 32000},
    {"phi-4", 2.5e5, 1, false, false, 0, 16384, 100257, 100257},
    {"phi-4-mini", 1e4, 0.75, true, true, 262144, 4096, 199999, 199999},
};

void specialize_phi3(std::string_view name, DecoderConfig& config) {
  for (const PhiModel& model : kPhiModels) {
    if (name != model.name) continue;
    config.rope_theta = model.theta;
    config.rotary_share = model.rotary_share;
    config.tied = model.tied;
    config.window = model.window;
    config.positions = model.positions;
    config.begin_token = model.begin_token;
    config.end_token = model.end_token;
    if (model.longrope)
      config.notes.push_back(fmt::format(
          "model.name: {}: its factors of longrope stand in the published config.json; of random "
          "weights positions turn without them",
          name));
  }
}

nlohmann::json phi3_fields(const DecoderConfig& config) {
  return {
      {"embd_pdrop", 0.0},
      {"original_max_position_embeddings", std::max(config.positions, config.sequence)},
      {"pad_token_id", config.end_token},
      {"partial_rotary_factor", config.rotary_share},
      {"resid_pdrop", 0.0},
      {"sliding_window", window_field(config)},
  };
}

DecoderConfig published_phi3() {
  DecoderConfig config;
  config.norm_eps = 1e-5;
  config.positions = 4096;
  config.begin_token = 1;
  config.end_token = 2;
  return config;
}

}  // namespace

const DecoderKind kPhi3 = {.model_class = "Phi3ForCausalLM",
                           .published = published_phi3(),
                           .specialize = specialize_phi3,
                           .fields = phi3_fields,
                           .joined = true,
                           .windowed = true,
                           .longrope = true};

}  // namespace dstrain
