#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/models/model.h"
#include "engine/models/weights.h"
#include "engine/recipe/recipe.h"

namespace dstrain {

/// The model of a recipe with all that the recipe says about its training: frozen tensors, those
/// without weight decay, and low-rank adapters. Error{usage} names the key.
[[nodiscard]] Model make_trainable_model(const Recipe& recipe, const ModelInputs& inputs);

/// Error{usage} where the phases of the recipe do not follow one another: a tensor that one has
/// trained is frozen in the next one, or has another shape there. Checkpoints, of which a phase
/// begins, leave out frozen tensors.
void check_phases(const Recipe& recipe, const ModelInputs& inputs);

/// What `model` starts from: the files that the recipe names, else random numbers of its seed.
[[nodiscard]] std::unique_ptr<WeightSource> first_weights(const Recipe& recipe, Model& model,
                                                          std::vector<std::string>& notes);

}  // namespace dstrain
