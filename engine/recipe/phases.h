#pragma once

#include <string>

#include "engine/recipe/recipe.h"

namespace dstrain {

/// Parts of the run, one at least.
[[nodiscard]] int num_phases(const Recipe& recipe);

/// The recipe as phase `index` has it: its frozen tensors, learning rate, warm-up and image size in
/// the place of the run's. `phases` stays, which has the lengths.
[[nodiscard]] Recipe phase_recipe(Recipe recipe, int index);

/// The same as a run of that phase alone.
[[nodiscard]] Recipe single_phase(const Recipe& recipe, int index);

/// "phase 1 of 2: 3 epochs, lr 0.01, frozen features.*", from 1 for people.
[[nodiscard]] std::string describe_phase(const Recipe& recipe, int index);

}  // namespace dstrain
