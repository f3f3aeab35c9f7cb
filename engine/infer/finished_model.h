#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <optional>
#include <string>

#include "engine/models/model.h"
#include "engine/recipe/families.h"
#include "engine/recipe/recipe.h"

/// A model that is asked, not trained.
namespace dstrain {

struct FinishedModelOptions {
  Modality modality = Modality::text;  ///< what it is to take
  std::filesystem::path adapter;  ///< folder of PEFT, added to the weights of a folder; or empty
  bool average = false;           ///< of a run: the average of the weights over the steps
  c10::Device device{c10::kCPU};
  at::ScalarType dtype = at::kFloat;  ///< of weights and activations
};

struct FinishedModel {
  Model model;                        ///< without adapters: they are in the weights
  std::filesystem::path tokenizer;    ///< of text: folder or file; empty: unknown
  std::string what;                   ///< for people: "runs/a, step 400"
  std::optional<Recipe> recipe = {};  ///< of a run
  int positions = 0;                  ///< that the model was trained for; 0: not said
};

/// `source` is a folder in the Hugging Face layout, a run (its best checkpoint, else its newest
/// valid one) or a checkpoint. Weights and untrained tensors, such as running statistics, have
/// their values. Error{usage}, Error{data} or Error{checkpoint} name what is missing and what would
/// do; Error{usage} also where the model is of the other modality.
[[nodiscard]] FinishedModel open_finished_model(const std::filesystem::path& source,
                                                const FinishedModelOptions& options);

}  // namespace dstrain
