#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/models/image/block.h"
#include "engine/models/model.h"
#include "engine/nn/batch_norm.h"
#include "engine/recipe/families.h"
#include "engine/recipe/recipe.h"

namespace dstrain {

/// What the name of a convolutional model leaves to the recipe.
struct NamedDefaults {
  double dropout = 0;               ///< before the classifier
  double drop_path = 0;             ///< of the last block's branch
  std::int64_t smallest_image = 1;  ///< pixels that its strides need
};

/// A convolutional model that is known by its name.
struct ImageModelConfig {
  const PublishedModel* published = nullptr;
  std::int64_t image_size = 0, channels = 0, classes = 0;
  std::vector<std::string> class_names = {};  ///< one per class, or none
  std::vector<std::string> notes = {};        ///< Model::notes
  BatchNormOptions norm;
  bool norm_args = false;  ///< timm makes the model with any constants of `norm`
  double dropout = 0, drop_path = 0;

  [[nodiscard]] FeatureSize image() const { return {image_size, image_size, channels}; }
};

/// By the recipe's name, or the architecture of its `weights`.
[[nodiscard]] const PublishedModel& published_image_model(const ModelConfig& recipe);

/// From the recipe's name, or config.json of its `weights`, and its overrides. Error{usage} lists
/// all that does not fit; Error{data} when config.json names another model.
[[nodiscard]] ImageModelConfig image_model_config(const ModelConfig& recipe,
                                                  const ModelFamily& family,
                                                  const ModelInputs& inputs,
                                                  const NamedDefaults& defaults);

/// A model of these blocks, with config.json as timm reads it: `architecture`, `num_classes`,
/// `pretrained_cfg`, `label_names` where they are known, and `model_args` where its batch norms are
/// not those of `architecture`.
[[nodiscard]] Model image_model(const ImageModelConfig& config, const ModelInputs& inputs,
                                Blocks blocks);

}  // namespace dstrain
