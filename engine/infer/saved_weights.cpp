#include "engine/infer/saved_weights.h"

#include <fmt/format.h>

#include <utility>

#include "engine/base/error.h"
#include "engine/checkpoint/base_weights.h"
#include "engine/kernels/nf4/nf4.h"
#include "engine/models/family.h"
#include "engine/models/trainable.h"
#include "engine/recipe/datasets.h"
#include "engine/recipe/load.h"
#include "engine/recipe/phases.h"

namespace dstrain {
namespace {

Recipe recipe_of(const CheckpointReader& reader, const std::filesystem::path& path) {
  const LoadedRecipe loaded = parse_recipe(reader.state().recipe, (path / "recipe").string());
  return phase_recipe(loaded.recipe, reader.state().phase);
}

/// The run's model; a head that is in the checkpoint says the number of classes, else their names.
Model trained_model(const CheckpointReader& reader, const Recipe& recipe) {
  ModelInputs inputs{.sequence = recipe.data.sequence, .class_names = reader.state().class_names};
  const std::string bias = std::string(find_family(recipe.model).classifier) + ".bias";
  for (const Piece& tensor : reader.tensors()) {
    if (tensor.name == bias) inputs.classes = static_cast<int>(tensor.numel());
  }
  if (inputs.classes == 0) inputs.classes = static_cast<int>(inputs.class_names.size());
  return make_trainable_model(recipe, inputs);
}

}  // namespace

std::optional<std::vector<float>> read_tensor(const WeightSource& source, const Model& model,
                                              const Piece& part) {
  for (const Parameter* parameter : all_parameters(model)) {
    for (const Piece& own : parameter->parts) {
      if (own.name != part.name) continue;
      std::vector<float> values(static_cast<std::size_t>(own.numel()));
      source.read_whole(*parameter, own, 0, values);
      return values;
    }
  }
  return std::nullopt;
}

SavedWeights::SavedWeights(std::filesystem::path checkpoint, bool average)
    : path_(std::move(checkpoint)),
      reader_(CheckpointReader::open(path_, /*verify=*/true)),
      recipe_(recipe_of(*reader_, path_)),
      model_(trained_model(*reader_, recipe_)),
      average_(average) {
  if (average && recipe_.ema.decay == 0) {
    throw Error(ErrorKind::usage, "--ema: the run keeps no average of its weights (ema.decay is 0)",
                "leave it out; the weights themselves are taken");
  }
  for (const Piece& tensor : reader_->tensors()) saved_.insert(tensor.name);
  // Only training keeps matrices in 4 bits: here they have the values that it saw.
  for (Parameter* parameter : all_parameters(model_)) {
    if (!parameter->nf4) continue;
    for (const Piece& part : parameter->parts) four_bits_.insert(part.name);
    parameter->nf4.reset();
  }
}

Model SavedWeights::plain_model(bool fp16) const {
  return make_model(recipe_.model, {.classes = model_.classes,
                                    .sequence = recipe_.data.sequence,
                                    .frames = frames_of(recipe_),
                                    .experts = recipe_.experts,
                                    .batch_norm = recipe_.batch_norm,
                                    .class_names = model_.class_names,
                                    .fp16 = fp16});
}

std::vector<float> SavedWeights::read(const Piece& part) {
  Piece whole(part.name, part.shape);
  // Frozen weights are their own average.
  if (average_ && saved_.contains(average_name(part.name))) whole.name = average_name(part.name);
  if (!saved_.contains(whole.name)) return read_base(part);
  std::vector<float> values(static_cast<std::size_t>(whole.numel()));
  reader_->read(whole, values);
  return values;
}

std::vector<float> SavedWeights::read_base(const Piece& part) {
  if (!base_) {
    Recipe recipe = recipe_;
    recipe.lora.weights.clear();  // what it started from stands in the checkpoint
    check_base(path_, reader_->state().base, base_reference(recipe));
    std::vector<std::string> notes;
    base_ = first_weights(recipe, model_, notes);
  }
  if (auto values = read_tensor(*base_, model_, part)) {
    if (four_bits_.contains(part.name) && !base_->read_nf4(part))
      return nf4_rounded(*values, recipe_.lora.double_coded);
    return *std::move(values);
  }
  throw Error(ErrorKind::checkpoint, fmt::format("{}: no tensor '{}'", path_.string(), part.name));
}

}  // namespace dstrain
