#include "engine/models/siglip/siglip.h"

#include <nlohmann/json.hpp>

#include "engine/models/clip/clip.h"

namespace dstrain {
namespace {

VitConfig published_siglip() {
  VitConfig config;
  config.norm_eps = 1e-6;
  config.gelu = ops::Gelu::tanh;
  return config;
}

nlohmann::json siglip_fields(const VitConfig&) { return {{"vision_use_head", false}}; }

}  // namespace

const VitKind kSiglip = {.model_class = "SiglipForImageClassification",
                         .published = published_siglip(),
                         .names = tower_names(),
                         .pooling = VitPooling::mean_patch,
                         .leaves_rest = true,
                         .flat = true,
                         .dropouts = {"attention_dropout", nullptr},
                         .tower_type = "siglip_vision_model",
                         .fields = siglip_fields};

}  // namespace dstrain
