#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/kernels/ops.h"
#include "engine/recipe/families.h"

namespace dstrain {

/// A GPT-NeoX, such as Pythia. Biderman et al. 2023, arXiv:2304.01373, table 1.
struct GptNeoxConfig : ModelSizes {
  std::int64_t sequence = 0;  ///< tokens of a sample
  double rope_theta = 10000;
  double rotary_share = 0.25;  ///< of each head's elements, the first, that turn
  double norm_eps = 1e-5;
  double init_std = 0.02;
  ops::Gelu gelu = ops::Gelu::erf;
  bool parallel = true;  ///< attention and MLP read the same rows, and both are added to them
  bool attention_bias = true;
  bool tied = false;               ///< the embedding's table is the head's
  std::string file;                ///< config.json it was read from, or empty
  std::vector<std::string> notes;  ///< on fields of that file which dstrain does not follow

  /// Elements of a head that turn, as transformers rounds them.
  [[nodiscard]] std::int64_t rotary() const {
    return static_cast<std::int64_t>(static_cast<double>(head_dim) * rotary_share);
  }
};

/// From the recipe's name, or config.json of its `weights`, and its overrides. Error{usage} lists
/// all that does not fit; Error{data} when config.json asks for what dstrain does not do.
[[nodiscard]] GptNeoxConfig gpt_neox_config(const ModelConfig& recipe, const ModelFamily& family);

/// config.json as transformers' GPTNeoXForCausalLM reads it.
[[nodiscard]] std::string gpt_neox_config_json(const GptNeoxConfig& config,
                                               const ModelFamily& family);

}  // namespace dstrain
