#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "recipes/schema/recipe.h"

namespace dstrain {

/// Sizes of a Vision Transformer. Dosovitskiy et al. 2021, arXiv:2010.11929, table 1.
struct VitConfig {
  std::int64_t image_size = 224;  ///< pixels, height and width
  std::int64_t patch_size = 16;
  std::int64_t channels = 3;
  std::int64_t width = 768;
  std::int64_t layers = 12;
  std::int64_t heads = 12;
  std::int64_t mlp_width = 3072;
  std::int64_t classes = 0;
  double norm_eps = 1e-12;
  double init_std = 0.02;
  std::vector<std::string> labels;  ///< one name per class, or none

  [[nodiscard]] std::int64_t patches() const {
    return (image_size / patch_size) * (image_size / patch_size);
  }
  [[nodiscard]] std::int64_t tokens() const { return patches() + 1; }
};

/// The sizes of a published model, as vit-base or google/vit-base-patch16-224; nothing for other
/// names.
[[nodiscard]] std::optional<VitConfig> vit_named(std::string name);

/// From the recipe's name, or config.json of its `weights`, and its overrides. Error{usage} lists
/// all that does not fit; Error{data} when config.json asks for what dstrain does not do.
[[nodiscard]] VitConfig vit_config(const ModelConfig& config, int data_classes);

/// config.json as transformers' ViTForImageClassification reads it.
[[nodiscard]] std::string vit_config_json(const VitConfig& config);

/// The names under which files keep the tensor that we and most files call `name`: also without the
/// `vit.` prefix (ViTModel), and the names that transformers 5 uses in memory.
[[nodiscard]] std::vector<std::string> vit_file_names(const std::string& name);

/// The name that transformers 5 has in memory.
[[nodiscard]] std::string vit_memory_name(const std::string& name);

}  // namespace dstrain
