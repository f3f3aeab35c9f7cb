#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/recipe/families.h"

namespace dstrain {

/// A Vision Transformer. Dosovitskiy et al. 2021, arXiv:2010.11929, table 1.
struct VitConfig : ModelSizes {
  std::int64_t classes = 0;
  double norm_eps = 1e-12;
  double init_std = 0.02;
  double drop_path = 0;             ///< of the last layer's branches, growing from the first
  std::vector<std::string> labels;  ///< one name per class, or none
  std::vector<std::string> notes = {};  ///< Model::notes

  [[nodiscard]] std::int64_t patches() const {
    return (image_size / patch_size) * (image_size / patch_size);
  }
  [[nodiscard]] std::int64_t tokens() const { return patches() + 1; }
};

/// From the recipe's name, or config.json of its `weights`, and its overrides. Error{usage} lists
/// all that does not fit; Error{data} when config.json asks for what dstrain does not do.
[[nodiscard]] VitConfig vit_config(const ModelConfig& recipe, const ModelFamily& family,
                                   int data_classes,
                                   const std::vector<std::string>& data_names = {});

/// config.json as transformers' ViTForImageClassification reads it.
[[nodiscard]] std::string vit_config_json(const VitConfig& config, const ModelFamily& family);

}  // namespace dstrain
