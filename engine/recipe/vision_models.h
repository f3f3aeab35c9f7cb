#pragma once

#include "engine/recipe/families.h"

/// The published Vision Transformers; rows of families.cpp.
namespace dstrain {

/// `layers` of width `width` and so on, for images of `image_size` pixels in three colours.
constexpr ModelSizes vit(std::int64_t patch_size, std::int64_t width, std::int64_t layers,
                         std::int64_t heads, std::int64_t mlp_width,
                         std::int64_t image_size = 224) {
  return {.image_size = image_size,
          .patch_size = patch_size,
          .channels = 3,
          .width = width,
          .layers = layers,
          .heads = heads,
          .mlp_width = mlp_width};
}

inline constexpr PublishedModel kVits[] = {
    {"vit-tiny", {}, vit(16, 192, 12, 3, 768)},
    {"vit-base",
     {"vit-base-patch16-224", "google/vit-base-patch16-224"},
     vit(16, 768, 12, 12, 3072)},
    {"vit-large",
     {"vit-large-patch16-224", "google/vit-large-patch16-224"},
     vit(16, 1024, 24, 16, 4096)},
    {"vit-huge",
     {"vit-huge-patch14-224-in21k", "google/vit-huge-patch14-224-in21k"},
     vit(14, 1280, 32, 16, 5120)},
};

inline constexpr PublishedModel kDeits[] = {
    {"deit-tiny",
     {"deit-tiny-distilled-patch16-224", "facebook/deit-tiny-distilled-patch16-224"},
     vit(16, 192, 12, 3, 768)},
    {"deit-small",
     {"deit-small-distilled-patch16-224", "facebook/deit-small-distilled-patch16-224"},
     vit(16, 384, 12, 6, 1536)},
    {"deit-base",
     {"deit-base-distilled-patch16-224", "facebook/deit-base-distilled-patch16-224"},
     vit(16, 768, 12, 12, 3072)},
};

/// MLP widths follow from config.json's mlp_ratio.
inline constexpr PublishedModel kDinov2s[] = {
    {"dinov2-small", {"facebook/dinov2-small"}, vit(14, 384, 12, 6, 0, 518)},
    {"dinov2-base", {"facebook/dinov2-base"}, vit(14, 768, 12, 12, 0, 518)},
    {"dinov2-large", {"facebook/dinov2-large"}, vit(14, 1024, 24, 16, 0, 518)},
    {"dinov2-giant", {"facebook/dinov2-giant"}, vit(14, 1536, 40, 24, 0, 518)},
};

inline constexpr PublishedModel kClips[] = {
    {"clip-vit-base-patch32", {"openai/clip-vit-base-patch32"}, vit(32, 768, 12, 12, 3072)},
    {"clip-vit-base-patch16", {"openai/clip-vit-base-patch16"}, vit(16, 768, 12, 12, 3072)},
    {"clip-vit-large-patch14", {"openai/clip-vit-large-patch14"}, vit(14, 1024, 24, 16, 4096)},
    {"clip-vit-large-patch14-336",
     {"openai/clip-vit-large-patch14-336"},
     vit(14, 1024, 24, 16, 4096, 336)},
};

inline constexpr PublishedModel kSiglips[] = {
    {"siglip-base-patch16-224", {"google/siglip-base-patch16-224"}, vit(16, 768, 12, 12, 3072)},
    {"siglip-large-patch16-256",
     {"google/siglip-large-patch16-256"},
     vit(16, 1024, 24, 16, 4096, 256)},
    {"siglip-so400m-patch14-384",
     {"google/siglip-so400m-patch14-384", "google/siglip2-so400m-patch14-384"},
     vit(14, 1152, 27, 16, 4304, 384)},
    {"siglip2-base-patch16-224", {"google/siglip2-base-patch16-224"}, vit(16, 768, 12, 12, 3072)},
    {"siglip2-giant-opt-patch16-256",
     {"google/siglip2-giant-opt-patch16-256"},
     vit(16, 1536, 40, 16, 6144, 256)},
};

}  // namespace dstrain
