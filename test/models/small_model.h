#pragma once

#include "engine/models/model.h"

namespace dstrain::test {

/// A ViT that runs in milliseconds: 5 tokens of width 16, two layers.
inline ModelConfig small_config() {
  ModelConfig config;
  config.name = "vit-tiny";
  config.image_size = 8;
  config.patch_size = 4;
  config.width = 16;
  config.layers = 2;
  config.heads = 2;
  config.mlp_width = 24;
  return config;
}

inline Model small_model(int classes) { return make_model(small_config(), classes); }

}  // namespace dstrain::test
