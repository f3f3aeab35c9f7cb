#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "engine/kernels/ops.h"
#include "engine/recipe/config_file.h"
#include "engine/recipe/families.h"

namespace dstrain {

/// A Vision Transformer. Dosovitskiy et al. 2021, arXiv:2010.11929, table 1.
struct VitConfig : ModelSizes {
  std::int64_t classes = 0;
  double norm_eps = 1e-12;
  double init_std = 0.02;
  ops::Gelu gelu = ops::Gelu::erf;
  bool gated = false;       ///< its MLPs are gated, and have no `gelu`
  double mlp_ratio = 0;     ///< of its hidden width to the model's, where config.json says that
  double first_scale = 1;   ///< of layer scales
  bool mask_token = false;  ///< its files have one, which no classifier reads
  bool two_heads = false;   ///< another classifier reads the second token
  double drop_path = 0;     ///< of the last layer's branches, growing from the first
  /// Pixels, height and width, of the images that its positions are for; those of other images are
  /// interpolated. 0: image_size.
  std::int64_t position_size = 0;
  std::vector<std::string> labels;      ///< one name per class, or none
  std::vector<std::string> notes = {};  ///< Model::notes

  [[nodiscard]] std::int64_t side() const { return image_size / patch_size; }
  [[nodiscard]] std::int64_t patches() const { return side() * side(); }
  [[nodiscard]] std::int64_t position_side() const {
    return (position_size > 0 ? position_size : image_size) / patch_size;
  }
};

/// What files call the tensors of a Vision Transformer, without .weight and .bias where these come
/// in pairs. Empty: it has no such tensor.
struct VitNames {
  std::string stem;                       ///< of the first block
  std::vector<std::string> first_tokens;  ///< that stand before the patches
  std::string positions;
  std::string projection;  ///< of patches
  std::string layer;       ///< before a layer's number; the following stand behind it and a dot
  std::array<std::string, 3> qkv;
  std::string output;  ///< of attention
  std::string norm_before, norm_after;
  std::string up, down;
  std::string gate_up = {}, gated_down = {};  ///< of gated MLPs, gate and up in one matrix
  std::array<std::string, 2> scales = {};     ///< of the branches
  std::string last_norm = {};
  std::string first_norm = {};  ///< of what the stem makes
};

/// A tensor of the files that no layer reads: exports have it as it was.
struct UnreadTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  double initial = 0;
};

/// What the classifier reads of the last layer's rows.
enum class VitPooling {
  first_token,
  mean_patch,
  both,  ///< the first token, then the mean patch
};

/// What makes a family of Vision Transformers.
struct VitKind {
  const char* model_class;   ///< of transformers
  VitConfig published = {};  ///< all but the sizes, as its published models have it
  VitNames names;
  VitPooling pooling = VitPooling::first_token;
  bool patch_bias = true;
  bool leaves_rest =
      false;  ///< images may have pixels behind the last whole patch, which it leaves out
  /// Tokens and positions are a vector and a matrix; else three-dimensional.
  bool flat = false;
  std::array<const char*, 2> dropouts;  ///< keys of config.json, which must be 0; null: none
  const char* tower_type = nullptr;     ///< model_type of ModelFamily::tower
  /// Fields of config.json for transformers that are neither sizes nor common to the families.
  nlohmann::json (*fields)(const VitConfig& config);
  /// Reads them, and what else the family has for its own; null: nothing.
  void (*read)(ConfigFile& file, VitConfig& config) = nullptr;
  /// What else a published model, by the name of its row, has for its own; null: nothing.
  void (*specialize)(std::string_view name, VitConfig& config) = nullptr;
  /// Sizes that follow from others; null: none.
  void (*complete)(VitConfig& config) = nullptr;
  std::vector<UnreadTensor> (*unread)(const VitConfig& config) = nullptr;  ///< null: none

  [[nodiscard]] std::int64_t first_tokens() const {
    return static_cast<std::int64_t>(names.first_tokens.size());
  }
  [[nodiscard]] std::int64_t tokens(const VitConfig& config) const {
    return config.patches() + first_tokens();
  }
};

/// From the recipe's name, or config.json of its `weights`, and its overrides. Error{usage} lists
/// all that does not fit; Error{data} when config.json asks for what dstrain does not do.
[[nodiscard]] VitConfig vit_config(const ModelConfig& recipe, const ModelFamily& family,
                                   const VitKind& kind, int data_classes,
                                   const std::vector<std::string>& data_names = {});

/// config.json as transformers' class of the family reads it.
[[nodiscard]] std::string vit_config_json(const VitConfig& config, const ModelFamily& family,
                                          const VitKind& kind);

}  // namespace dstrain
