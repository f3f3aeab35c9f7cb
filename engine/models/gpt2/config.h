#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/kernels/ops.h"
#include "engine/recipe/families.h"

namespace dstrain {

/// A GPT-2. Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", table 2.
struct Gpt2Config : ModelSizes {
  std::int64_t sequence = 0;      ///< tokens of a sample
  std::int64_t positions = 1024;  ///< rows of the table of positions
  double norm_eps = 1e-5;
  double init_std = 0.02;
  ops::Gelu gelu = ops::Gelu::tanh;
  bool scale_scores = true;            ///< by 1 / sqrt(head_dim)
  bool scale_scores_by_layer = false;  ///< by 1 / (number of the layer, from 1)
  bool tied = true;                    ///< the embedding's table is the head's
  std::string file;                    ///< config.json it was read from, or empty
  std::vector<std::string> notes;      ///< on fields of that file which dstrain does not follow

  /// What scores of layer `index` are multiplied by.
  [[nodiscard]] double score_scale(std::int64_t index) const;
};

/// From the recipe's name, or config.json of its `weights`, and its overrides. Error{usage} lists
/// all that does not fit; Error{data} when config.json asks for what dstrain does not do.
[[nodiscard]] Gpt2Config gpt2_config(const ModelConfig& recipe, const ModelFamily& family);

/// config.json as transformers' GPT2LMHeadModel reads it.
[[nodiscard]] std::string gpt2_config_json(const Gpt2Config& config, const ModelFamily& family);

}  // namespace dstrain
