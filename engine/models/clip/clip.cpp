#include "engine/models/clip/clip.h"

#include <nlohmann/json.hpp>

namespace dstrain {
namespace {

VitNames clip_names() {
  VitNames names = tower_names();
  names.first_tokens = {names.stem + ".class_embedding"};
  names.first_norm = "vision_model.pre_layrnorm";
  names.last_norm = {};
  return names;
}

VitConfig published_clip() {
  VitConfig config;
  config.norm_eps = 1e-5;
  config.gelu = ops::Gelu::quick;
  return config;
}

nlohmann::json clip_fields(const VitConfig& config) {
  return {{"initializer_range", config.init_std}};
}

std::vector<UnreadTensor> unread_of_clip(const VitConfig& config) {
  return {{.name = "vision_model.post_layernorm.weight", .shape = {config.width}, .initial = 1},
          {.name = "vision_model.post_layernorm.bias", .shape = {config.width}}};
}

}  // namespace

VitNames tower_names() {
  return {.stem = "vision_model.embeddings",
          .first_tokens = {},
          .positions = "vision_model.embeddings.position_embedding.weight",
          .projection = "vision_model.embeddings.patch_embedding",
          .layer = "vision_model.encoder.layers.",
          .qkv = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
          .output = "self_attn.out_proj",
          .norm_before = "layer_norm1",
          .norm_after = "layer_norm2",
          .up = "mlp.fc1",
          .down = "mlp.fc2",
          .last_norm = "vision_model.post_layernorm"};
}

const VitKind kClip = {.model_class = "CLIPForImageClassification",
                       .published = published_clip(),
                       .names = clip_names(),
                       .pooling = VitPooling::mean_patch,
                       .patch_bias = false,
                       .flat = true,
                       .dropouts = {"attention_dropout", nullptr},
                       .tower_type = "clip_vision_model",
                       .fields = clip_fields,
                       .unread = unread_of_clip};

}  // namespace dstrain
