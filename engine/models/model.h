#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/nn/block.h"
#include "recipes/schema/recipe.h"

namespace dstrain {

/// A model: its blocks and what files call it. Holds architecture only; no device, stream,
/// precision or strategy.
struct Model {
  std::string family;  ///< "vit"
  Blocks blocks;
  /// config.json of the Hugging Face layout, for export.
  std::string config_json;
  int image_size = 0;
  int channels = 0;
  int classes = 0;
};

/// Sizes from the recipe's name and overrides, or from `weights`' config.json. `classes` of the
/// recipe, else of the data. Error{usage} names the key and what would do.
[[nodiscard]] Model make_model(const ModelConfig& config, int data_classes);

/// Costs of all blocks for one micro-batch; group i is block i.
[[nodiscard]] ModelCost model_cost(Model& model, const BatchShape& shape);

}  // namespace dstrain
