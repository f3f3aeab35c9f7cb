#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "recipes/schema/recipe.h"

namespace dstrain {

/// A size of a model as recipes and config.json call it.
struct ModelSize {
  std::string_view key;                  ///< under model
  std::array<const char*, 2> file_keys;  ///< as written today and, or null, in earlier files
  int ModelConfig::* member;
  std::int64_t most;
  bool image = false;  ///< of the image: the model's name leaves it open
};

inline constexpr std::array<ModelSize, 7> kVitSizes = {{
    {"image_size", {"image_size"}, &ModelConfig::image_size, 16384, true},
    {"patch_size", {"patch_size"}, &ModelConfig::patch_size, 1024},
    {"channels", {"num_channels"}, &ModelConfig::channels, 1024},
    {"width", {"hidden_size"}, &ModelConfig::width, 65536},
    {"layers", {"num_hidden_layers"}, &ModelConfig::layers, 4096},
    {"heads", {"num_attention_heads"}, &ModelConfig::heads, 4096},
    {"mlp_width", {"intermediate_size"}, &ModelConfig::mlp_width, 1 << 20},
}};
inline constexpr std::array<ModelSize, 4> kBloomSizes = {{
    {"width", {"hidden_size", "n_embed"}, &ModelConfig::width, 65536},
    {"layers", {"n_layer", "num_hidden_layers"}, &ModelConfig::layers, 4096},
    {"heads", {"n_head", "num_attention_heads"}, &ModelConfig::heads, 4096},
    {"vocab_size", {"vocab_size"}, &ModelConfig::vocab_size, 1 << 24},
}};
inline constexpr std::array<ModelSize, 6> kQwen2Sizes = {{
    {"width", {"hidden_size"}, &ModelConfig::width, 65536},
    {"layers", {"num_hidden_layers"}, &ModelConfig::layers, 4096},
    {"heads", {"num_attention_heads"}, &ModelConfig::heads, 4096},
    {"kv_heads", {"num_key_value_heads"}, &ModelConfig::kv_heads, 4096},
    {"mlp_width", {"intermediate_size"}, &ModelConfig::mlp_width, 1 << 20},
    {"vocab_size", {"vocab_size"}, &ModelConfig::vocab_size, 1 << 24},
}};

[[nodiscard]] constexpr std::span<const ModelSize> model_sizes(ModelFamily family) {
  switch (family) {
    case ModelFamily::vit:
      return kVitSizes;
    case ModelFamily::bloom:
      return kBloomSizes;
    case ModelFamily::qwen2:
      return kQwen2Sizes;
  }
  return {};
}

/// The size that recipes call `key`; one that the family has not does not compile.
[[nodiscard]] consteval ModelSize model_size(ModelFamily family, std::string_view key) {
  for (const ModelSize& size : model_sizes(family)) {
    if (size.key == key) return size;
  }
  throw "no such size";
}

}  // namespace dstrain
