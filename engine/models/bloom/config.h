#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/recipe/families.h"

namespace dstrain {

/// A BLOOM. BigScience 2022, arXiv:2211.05100, table 3.
struct BloomConfig : ModelSizes {
  std::int64_t sequence = 0;  ///< tokens of a sample
  double norm_eps = 1e-5;
  double init_std = 0.02;
  bool tied = true;                ///< the embedding's table is the head's
  std::string file;                ///< config.json it was read from, or empty
  std::vector<std::string> notes;  ///< on fields of that file which dstrain does not follow
};

/// From the recipe's name, or config.json of its `weights`, and its overrides. Error{usage} lists
/// all that does not fit; Error{data} when config.json asks for what dstrain does not do.
[[nodiscard]] BloomConfig bloom_config(const ModelConfig& recipe, const ModelFamily& family);

/// config.json as transformers' BloomForCausalLM reads it.
[[nodiscard]] std::string bloom_config_json(const BloomConfig& config, const ModelFamily& family);

}  // namespace dstrain
