#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/checkpoint/best_checkpoint.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/models/model.h"
#include "engine/models/weights.h"
#include "engine/recipe/recipe.h"

/// What a checkpoint holds, as a model: for exports and for models that answer.
namespace dstrain {

/// A whole tensor of `model` out of `source`; nothing where no weight of the model has that name.
[[nodiscard]] std::optional<std::vector<float>> read_tensor(const WeightSource& source,
                                                            const Model& model, const Piece& part);

/// A checkpoint with the recipe of its phase and the model that was trained.
class SavedWeights {
 public:
  /// `average`: of the weights over the steps, in their place. Error{checkpoint}, Error{usage}.
  SavedWeights(std::filesystem::path checkpoint, bool average);

  [[nodiscard]] const CheckpointReader& reader() const { return *reader_; }
  [[nodiscard]] const Recipe& recipe() const { return recipe_; }
  [[nodiscard]] Model& model() { return model_; }
  /// The run's model without adapters. `fp16`: ModelInputs::fp16.
  [[nodiscard]] Model plain_model(bool fp16 = false) const;

  /// A whole tensor; one that the checkpoint leaves out as frozen is that of the run's base,
  /// as training saw it.
  [[nodiscard]] std::vector<float> read(const Piece& part);

 private:
  [[nodiscard]] std::vector<float> read_base(const Piece& part);

  std::filesystem::path path_;
  std::unique_ptr<CheckpointReader> reader_;
  Recipe recipe_;
  Model model_;
  bool average_;
  std::set<std::string> saved_;
  std::set<std::string> four_bits_;  ///< tensors of the base that training kept so (lora.base)
  std::unique_ptr<WeightSource> base_;
};

}  // namespace dstrain
