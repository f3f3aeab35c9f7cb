#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "engine/recipe/choices.h"
#include "engine/recipe/recipe.h"

namespace dstrain {

enum class Modality { images, text };

/// Sizes of a model; 0 where a family has none.
struct ModelSizes {
  std::int64_t image_size = 0;  ///< pixels, height and width
  std::int64_t patch_size = 0;
  std::int64_t channels = 0;
  std::int64_t width = 0;
  std::int64_t layers = 0;
  std::int64_t heads = 0;     ///< of queries
  std::int64_t kv_heads = 0;  ///< of keys and values
  std::int64_t head_dim = 0;
  std::int64_t mlp_width = 0;
  std::int64_t vocab_size = 0;
  std::int64_t experts = 0;  ///< of a layer
  std::int64_t experts_per_token = 0;
  std::int64_t expert_width = 0;  ///< hidden width of one
  std::int64_t shared_width = 0;  ///< hidden width of the expert of every token
};

/// A size as recipes and config.json call it.
struct ModelSize {
  std::string_view key;                  ///< under model
  std::array<const char*, 2> file_keys;  ///< as written today and, or null, in earlier files
  int ModelConfig::*member;
  std::int64_t ModelSizes::*size;
  std::int64_t max;
  bool image = false;     ///< of the image: the model's name leaves it open
  bool optional = false;  ///< follows from the other sizes where it is not given
};

/// Constants of batch norms.
struct NormConstants {
  double eps = 1e-5;
  double momentum = 0.1;  ///< share of the new statistics

  bool operator==(const NormConstants&) const = default;
};

/// A published model.
struct PublishedModel {
  std::string_view name;  ///< that `model.name` accepts
  /// Further such names, and so those of Hugging Face; empty: none.
  std::array<std::string_view, 2> aliases;
  ModelSizes sizes;
  std::string_view text = {};  ///< what it is, where the sizes do not say it
  bool batch_norm = false;     ///< it has such layers
  NormConstants norm = {};     ///< of these layers
  /// timm's model that differs in `norm` only, where timm has none with this `norm`.
  std::string_view timm_variant = {};
};

/// What a recipe needs to know of a family of models. The architecture is in engine/models.
struct ModelFamily {
  std::string_view name;    ///< model_type of config.json; also a name that `model.name` accepts
  std::string_view title;   ///< for people
  std::string_view source;  ///< where its sizes are published; empty: nowhere
  Modality modality = Modality::text;
  bool rotary = false;            ///< rotary positions, which end where its training did
  bool learnt_positions = false;  ///< a row of a table for each
  const char* positions;          ///< config.json's key of the length it was trained with, or null
  std::span<const std::string_view> lora_targets;  ///< maps that usually get adapters
  std::span<const ModelSize> sizes;
  ModelSizes defaults;  ///< where config.json says nothing; 0: it must
  std::span<const PublishedModel> published;
  /// Its models are known by their names, which config.json has as `architecture`, and the family's
  /// name is none; they are convolutional, with a dropout before the classifier.
  bool by_name = false;
  bool drop_path = false;  ///< its blocks have branches that samples can skip
  bool joins = false;      ///< its models are made of others, which the recipe names
  bool norm_args = false;  ///< timm makes its models with any NormConstants
  /// config.json's object that has the sizes, beside that of a tower for text; null: it has them
  /// itself.
  const char* tower = nullptr;
  bool resizes_positions = false;  ///< images may be larger or smaller than its positions are for

  [[nodiscard]] bool has_experts() const { return has_size("experts"); }
  [[nodiscard]] bool has_size(std::string_view key) const {
    return std::ranges::find(sizes, key, &ModelSize::key) != sizes.end();
  }
};

[[nodiscard]] std::span<const ModelFamily> model_families();
/// The family of a name that `model.name` accepts; null for others.
[[nodiscard]] const ModelFamily* family_of(std::string_view name);
/// The family of config.json's model_type; null for others.
[[nodiscard]] const ModelFamily* family_of_type(std::string_view model_type);
/// Null for a name that says no sizes.
[[nodiscard]] const PublishedModel* published_model(std::string_view name);
/// By config.json's `architecture`: the model's name or what timm or torchvision call it. Null for
/// others.
[[nodiscard]] const PublishedModel* published_architecture(std::string_view architecture);
/// The model that differs from timm's `architecture` in having this `norm`; null: there is none.
[[nodiscard]] const PublishedModel* timm_variant(std::string_view architecture,
                                                 const NormConstants& norm);
/// timm's name of it where it has one, perhaps with another `norm`.
[[nodiscard]] std::string_view architecture_of(const PublishedModel& model);

/// Names that `model.name` accepts.
[[nodiscard]] std::span<const Choice> model_names();
/// Those that config.json's model_type may have: "vit, bloom or qwen2".
[[nodiscard]] std::string family_names();

}  // namespace dstrain
