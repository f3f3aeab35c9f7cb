#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/mesh/split.h"
#include "engine/nn/block.h"
#include "engine/recipe/recipe.h"

namespace dstrain {

struct Family;  // engine/models/family.h

/// A model: its blocks and what files call it. Holds architecture only; no device, stream,
/// precision or strategy.
struct Model {
  const Family* family = nullptr;
  Blocks blocks;
  /// config.json of the Hugging Face layout, for export.
  std::string config_json;
  int image_size = 0;         ///< 0 for text
  int channels = 0;           ///< 0 for text
  int frames = 1;             ///< images of a sample, each a sample of its layers' norms
  int classes = 0;            ///< 0 for text
  int vocab_size = 0;         ///< 0 for images
  int sequence = 0;           ///< tokens of a sample; 0 for images
  int experts_per_token = 0;  ///< 0: no layer has experts
  Splits splits = {};         ///< ModelInputs::splits
  std::vector<std::string> class_names = {};  ///< of all classes, as exports have them; or none
  std::vector<std::string> notes = {};        ///< what a person should know of its config.json
  Bytes bucket = 0;    ///< neighbouring blocks share groups up to this size of fp32 gradients
  bool drops = false;  ///< a block drops elements while it trains
  int tile_rows = 0;   ///< on which MLPs work at once; 0: all
  /// Length of a sample, as the layers of this rank see it: patches and class token of an image.
  int tokens = 0;

  [[nodiscard]] bool is_language() const { return vocab_size > 0; }
};

/// What the data, the ranks and the recipe beside its section model say of a model.
struct ModelInputs {
  int classes = 0;                  ///< of images; 0: unknown
  int sequence = 0;                 ///< tokens of a sample of text; 0: unknown, then costs are too
  int frames = 1;                   ///< images of a sample
  Splits splits = {};               ///< parts that this rank has; whole for export
  ExpertsConfig experts = {};       ///< of the recipe: losses of routers, planned load
  BatchNormConfig batch_norm = {};  ///< of the recipe
  /// Model::bucket of families whose blocks are small.
  Bytes bucket = 0;
  std::vector<std::string> class_names = {};  ///< of the data's labels; none: unknown
  int tile_rows = 0;                          ///< memory.tiles
  bool pairs = false;                         ///< samples are pairs of answers (ops::PairLoss)
  bool fp16 = false;     ///< it computes in fp16, whose largest number is 65504
  bool answers = false;  ///< it is not trained: all its heads answer
  /// Tokens of a sample that this rank has.
  [[nodiscard]] int own_tokens() const { return sequence / splits.sequence.count; }
};

/// Sizes from the recipe's name and overrides, or from `weights`' config.json. `classes` of the
/// recipe, else of the data. Error{usage} names the key and what would do.
[[nodiscard]] Model make_model(const ModelConfig& config, const ModelInputs& inputs);

/// Whether `config` names a model of text, by its name or its weights' config.json.
[[nodiscard]] bool is_language_model(const ModelConfig& config);

/// Every weight once, in the order of the blocks; one that two blocks share is with the first.
[[nodiscard]] std::vector<Parameter*> all_parameters(const Model& model);

/// The embedding's table where it is the head's, too: the first block's parameter whose part is
/// Family::embedding. Null for a head with a matrix of its own, and for images.
[[nodiscard]] const Parameter* tied_table(const Model& model);

/// Untrained tensors of all blocks, in their order.
[[nodiscard]] std::vector<BlockState*> all_states(const Model& model);

/// Costs of all blocks for one micro-batch; groups are those of group_parameters(). Error{usage}
/// where the tensor ranks do not divide its rows.
[[nodiscard]] ModelCost model_cost(Model& model, const BatchShape& shape);

}  // namespace dstrain
