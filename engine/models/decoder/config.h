#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "engine/kernels/ops.h"
#include "engine/recipe/families.h"

namespace dstrain {

/// A decoder of the kind that Llama has shaped (engine/models/decoder/model.h).
struct DecoderConfig : ModelSizes {
  std::int64_t sequence = 0;  ///< tokens of a sample
  double rope_theta = 10000;  ///< base of the rotary positions
  double local_theta = 0;     ///< where a layer has the window, unscaled; 0: the same
  ops::RopeScaling rope_scaling;
  double norm_eps = 1e-6;
  double init_std = 0.02;
  double stream_scale = 1;            ///< times what travels between blocks; not of config.json
  std::int64_t window = 0;            ///< a token sees itself and window - 1 earlier ones; 0: all
  std::int64_t window_period = 0;     ///< of so many layers the last one sees all; 0: none does
  std::vector<bool> layer_windows;    ///< which layers have the window; empty: by window_period
  std::int64_t attention_scalar = 0;  ///< scores are divided by its root; 0: head_dim
  double attention_softcap = 0, logit_softcap = 0;  ///< AttentionShape::softcap; 0: none
  double rotary_share = 1;  ///< of each head's elements, the first, that turn
  /// For files of random weights; positions 0: DecoderKind::fields has all three.
  std::int64_t positions = 0, begin_token = 0, end_token = 0;
  bool qkv_bias = false;                   ///< query, key and value have biases
  bool qk_norm = false;                    ///< each head of query and key is normed
  bool tied = false;                       ///< the embedding's table is the head's
  bool norm_topk = false;                  ///< the weights of a token's experts add up to 1
  std::int64_t sparse_step = 1;            ///< of so many layers the last one has experts
  std::vector<std::int64_t> dense_layers;  ///< without experts, whatever sparse_step says
  std::string file;                        ///< config.json it was read from, or empty
  std::vector<std::string> notes;          ///< on fields of that file which dstrain does not follow

  [[nodiscard]] std::int64_t qkv_width() const { return (heads + 2 * kv_heads) * head_dim; }
  /// Elements of a head that turn, as transformers rounds them.
  [[nodiscard]] std::int64_t rotary() const {
    return static_cast<std::int64_t>(static_cast<double>(head_dim) * rotary_share);
  }
  [[nodiscard]] bool has_experts(std::int64_t layer) const;
  /// Whether `window` is that of this layer.
  [[nodiscard]] bool has_window(std::int64_t layer) const;
  /// How many layers have experts.
  [[nodiscard]] std::int64_t expert_layers() const;
};

/// sliding_window of config.json; null: there is none.
[[nodiscard]] nlohmann::json window_field(const DecoderConfig& config);

/// What files call the mixture of experts of a layer, and the matrices of an expert.
struct ExpertNames {
  const char* layer = "mlp";
  const char* gate = "gate_proj";
  const char* up = "up_proj";
  const char* down = "down_proj";
};

/// What makes a family of such decoders.
struct DecoderKind {
  const char* model_class;  ///< of transformers
  DecoderConfig published;  ///< all but the sizes, as its published models have it
  /// What else a published model, by the name of its row, has for its own.
  void (*specialize)(std::string_view name, DecoderConfig& config);
  /// Fields of config.json for transformers that are neither sizes nor common to the families.
  nlohmann::json (*fields)(const DecoderConfig& config);
  bool joined = false;    ///< query, key and value are one tensor of files, gate and up another
  bool windowed = false;  ///< config.json has sliding_window; published.window where it does not
  /// config.json has layer_types, published.window_period where it does not; with
  /// published.local_theta also rope_local_base_freq, and rope_scaling of linear.
  bool window_by_layer = false;
  /// config.json may have partial_rotary_factor, and rope_scaling of longrope, but not of llama3.
  bool longrope = false;
  ExpertNames experts = {};
  /// Branches are normed behind themselves, and queries and keys over all heads, not each.
  bool norms_after = false;
  /// What Gemma has for its own: norms on both sides of the branches, whose weights hold the factor
  /// less one; GELU as the MLP's gate; embeddings times the root of the width;
  /// query_pre_attn_scalar and soft caps in config.json.
  bool gemma = false;
};

/// From the recipe's name, or config.json of its `weights`, and its overrides. Error{usage} lists
/// all that does not fit; Error{data} when config.json asks for what dstrain does not do.
[[nodiscard]] DecoderConfig decoder_config(const ModelConfig& recipe, const ModelFamily& family,
                                           const DecoderKind& kind);

/// config.json as transformers' class of the family reads it.
[[nodiscard]] std::string decoder_config_json(const DecoderConfig& config,
                                              const ModelFamily& family, const DecoderKind& kind);

}  // namespace dstrain
