#include "engine/models/dinov2/dinov2.h"

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/models/vit/names.h"

namespace dstrain {
namespace {

constexpr std::string_view kDinov2Prefix = "dinov2.";
constexpr double kMaxMlpRatio = 64;

constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kLaterDinov2Names = {{
    {".attention.attention.query", ".attention.q_proj"},
    {".attention.attention.key", ".attention.k_proj"},
    {".attention.attention.value", ".attention.v_proj"},
    {".attention.output.dense", ".attention.o_proj"},
    {".mlp.weights_out", ".mlp.down_proj"},
}};

VitNames dinov2_names() {
  VitNames names = vit_names(kDinov2Prefix);
  names.norm_before = "norm1";
  names.norm_after = "norm2";
  names.up = "mlp.fc1";
  names.down = "mlp.fc2";
  names.gate_up = "mlp.weights_in";
  names.gated_down = "mlp.weights_out";
  names.scales = {"layer_scale1.lambda1", "layer_scale2.lambda1"};
  return names;
}

VitConfig published_dinov2() {
  VitConfig config;
  config.norm_eps = 1e-6;
  config.mlp_ratio = 4;
  config.mask_token = true;
  return config;
}

nlohmann::json dinov2_fields(const VitConfig& config) {
  nlohmann::json json = {
      {"drop_path_rate", 0.0},
      {"initializer_range", config.init_std},
      {"layerscale_value", config.first_scale},
      {"mlp_ratio", config.mlp_ratio},
      {"qkv_bias", true},
      {"use_mask_token", config.mask_token},
      {"use_swiglu_ffn", config.gated},
  };
  // transformers takes whole numbers only.
  if (config.mlp_ratio == std::floor(config.mlp_ratio))
    json["mlp_ratio"] = static_cast<std::int64_t>(config.mlp_ratio);
  return json;
}

void read_dinov2(ConfigFile& file, VitConfig& config) {
  config.mlp_ratio = file.number_within("mlp_ratio", 0.01, kMaxMlpRatio, config.mlp_ratio);
  config.gated = file.flag("use_swiglu_ffn", false);
  config.first_scale = file.number("layerscale_value", config.first_scale);
  config.mask_token = file.flag("use_mask_token", true);
  if (file.number("drop_path_rate", 0) != 0)
    file.refuse("drop_path_rate", "0; the recipe has model.drop_path");
}

void specialize_dinov2(std::string_view name, VitConfig& config) {
  config.gated = name == "dinov2-giant";
}

/// Gated MLPs have two thirds of the width, rounded up to a multiple of 8.
void complete_dinov2(VitConfig& config) {
  config.mlp_width =
      static_cast<std::int64_t>(static_cast<double>(config.width) * config.mlp_ratio);
  if (!config.gated) return;
  const auto share = static_cast<std::int64_t>(static_cast<double>(config.mlp_width) * 2 / 3);
  config.mlp_width = (share + 7) / 8 * 8;
}

std::vector<UnreadTensor> unread_of_dinov2(const VitConfig& config) {
  if (!config.mask_token) return {};
  return {{.name = "dinov2.embeddings.mask_token", .shape = {1, config.width}}};
}

}  // namespace

std::vector<std::string> dinov2_file_names(const std::string& name) {
  return names_in_files(name, dinov2_memory_name(name), kDinov2Prefix);
}

std::string dinov2_memory_name(const std::string& name) {
  for (const auto& [earlier, later] : kLaterDinov2Names) {
    const std::size_t place = name.find(earlier);
    if (place != std::string::npos)
      return name.substr(0, place) + std::string(later) + name.substr(place + earlier.size());
  }
  return name;
}

const VitKind kDinov2 = {.model_class = "Dinov2ForImageClassification",
                         .published = published_dinov2(),
                         .names = dinov2_names(),
                         .pooling = VitPooling::both,
                         .dropouts = {"attention_probs_dropout_prob", "hidden_dropout_prob"},
                         .fields = dinov2_fields,
                         .read = read_dinov2,
                         .specialize = specialize_dinov2,
                         .complete = complete_dinov2,
                         .unread = unread_of_dinov2};

}  // namespace dstrain
