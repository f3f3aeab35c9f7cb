#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "engine/recipe/recipe.h"

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

/// From processor_config.json or preprocessor_config.json in the folder `weights`, else from timm's
/// pretrained_cfg in config.json, whose crop goes with a model's `image_size` (0: the file's);
/// nothing when none says it. What a file leaves out is as its class has it. Error{data} lists what
/// dstrain does not do.
[[nodiscard]] std::optional<ImageProcessor> read_image_processor(
    const std::filesystem::path& weights, int image_size = 0);

/// preprocessor_config.json by which transformers prepares images as evaluation does: stored with
/// `stored_side` pixels, of which a model of `channels` gets the middle `image_size`; smaller ones
/// are enlarged.
[[nodiscard]] std::string image_processor_json(const DataConfig& data, int stored_side,
                                               int image_size, int channels);

/// The same in timm's words: adds to `pretrained_cfg` of a config.json's text.
[[nodiscard]] std::string with_pretrained_cfg(const std::string& config_json,
                                              const DataConfig& data, int stored_side,
                                              int image_size, int channels);

}  // namespace dstrain
