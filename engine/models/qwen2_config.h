#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "recipes/schema/recipe.h"

namespace dstrain {

/// Sizes of a Qwen2 or Qwen2.5. Qwen Team 2024, arXiv:2412.15115, table 1, and the config.json
/// files published with the models.
struct Qwen2Config {
  std::int64_t width = 0;
  std::int64_t layers = 0;
  std::int64_t heads = 0;     ///< of queries
  std::int64_t kv_heads = 0;  ///< of keys and values
  std::int64_t mlp_width = 0;
  std::int64_t vocab_size = 0;
  std::int64_t sequence = 0;  ///< tokens of a sample
  double rope_theta = 1e6;    ///< base of the rotary positions
  double norm_eps = 1e-6;
  double init_std = 0.02;
  bool tied = false;               ///< the embedding's table is the head's
  std::string file;                ///< config.json it was read from, or empty
  std::vector<std::string> notes;  ///< on fields of that file which dstrain does not follow

  [[nodiscard]] std::int64_t head_dim() const { return width / heads; }
  [[nodiscard]] std::int64_t qkv_width() const { return (heads + 2 * kv_heads) * head_dim(); }
};

/// The sizes of a published model, as qwen2.5-0.5b or Qwen/Qwen2.5-0.5B-Instruct; nothing for other
/// names.
[[nodiscard]] std::optional<Qwen2Config> qwen2_named(std::string name);

/// From the recipe's name, or config.json of its `weights`, and its overrides. Error{usage} lists
/// all that does not fit; Error{data} when config.json asks for what dstrain does not do.
[[nodiscard]] Qwen2Config qwen2_config(const ModelConfig& recipe);

/// config.json as transformers' Qwen2ForCausalLM reads it.
[[nodiscard]] std::string qwen2_config_json(const Qwen2Config& config);

/// The names under which files keep the tensor that we and most files call `name`: also without the
/// `model.` prefix (Qwen2Model).
[[nodiscard]] std::vector<std::string> qwen2_file_names(const std::string& name);

}  // namespace dstrain
