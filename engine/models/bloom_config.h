#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "recipes/schema/recipe.h"

namespace dstrain {

/// Sizes of a BLOOM. BigScience 2022, arXiv:2211.05100, table 3.
struct BloomConfig {
  std::int64_t width = 0;
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t vocab_size = 0;
  std::int64_t sequence = 0;  ///< tokens of a sample
  double norm_eps = 1e-5;
  double init_std = 0.02;
  bool tied = true;                ///< the embedding's table is the head's
  std::string file;                ///< config.json it was read from, or empty
  std::vector<std::string> notes;  ///< on fields of that file which dstrain does not follow

  [[nodiscard]] std::int64_t head_dim() const { return width / heads; }
  [[nodiscard]] std::int64_t mlp_width() const { return 4 * width; }
};

/// The sizes of a published model, as bloom-560m or bigscience/bloom-560m; nothing for other names.
[[nodiscard]] std::optional<BloomConfig> bloom_named(std::string name);

/// From the recipe's name, or config.json of its `weights`, and its overrides. Error{usage} lists
/// all that does not fit; Error{data} when config.json asks for what dstrain does not do.
[[nodiscard]] BloomConfig bloom_config(const ModelConfig& recipe);

/// config.json as transformers' BloomForCausalLM reads it.
[[nodiscard]] std::string bloom_config_json(const BloomConfig& config);

/// The names under which files keep the tensor that we and transformers call `name`: also without
/// the `transformer.` prefix, as the published files have them.
[[nodiscard]] std::vector<std::string> bloom_file_names(const std::string& name);

}  // namespace dstrain
