#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "recipes/schema/recipe.h"

namespace dstrain {

/// How transformers prepares images for a model, in the words of a recipe.
struct ImageProcessor {
  std::string file;    ///< that says it
  int image_size = 0;  ///< pixels that the model gets, height and width
  Fit resize = Fit::stretch;
  int resize_side = 0;
  Interpolation interpolation = Interpolation::bilinear;
  NormalizeConfig normalize;
};

/// From processor_config.json or preprocessor_config.json in the folder `weights`; nothing when
/// neither says it. What a file leaves out is as its class has it. Error{data} lists what dstrain
/// does not do.
[[nodiscard]] std::optional<ImageProcessor> read_image_processor(
    const std::filesystem::path& weights);

/// preprocessor_config.json by which transformers prepares images as evaluation does: stored with
/// `stored_side` pixels, of which a model of `channels` gets the middle `image_size`; smaller ones
/// are enlarged.
[[nodiscard]] std::string image_processor_json(const DataConfig& data, int stored_side,
                                               int image_size, int channels);

}  // namespace dstrain
