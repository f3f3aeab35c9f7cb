#include "engine/recipe/phases.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>

namespace dstrain {

int num_phases(const Recipe& recipe) { return std::max(1, static_cast<int>(recipe.phases.size())); }

Recipe phase_recipe(Recipe recipe, int index) {
  if (recipe.phases.empty()) return recipe;
  const PhaseConfig& phase = recipe.phases.at(static_cast<std::size_t>(index));
  recipe.model.frozen.insert(recipe.model.frozen.end(), phase.frozen.begin(), phase.frozen.end());
  if (phase.lr > 0) recipe.optimizer.lr = phase.lr;
  if (phase.warmup_steps >= 0) recipe.optimizer.warmup_steps = phase.warmup_steps;
  if (phase.image_size > 0) recipe.model.image_size = phase.image_size;
  return recipe;
}

Recipe single_phase(const Recipe& recipe, int index) {
  Recipe alone = phase_recipe(recipe, index);
  if (recipe.phases.empty()) return alone;
  const PhaseConfig& phase = recipe.phases.at(static_cast<std::size_t>(index));
  alone.run.epochs = phase.epochs;
  alone.run.steps = phase.steps;
  alone.phases.clear();
  return alone;
}

std::string describe_phase(const Recipe& recipe, int index) {
  const PhaseConfig& phase = recipe.phases.at(static_cast<std::size_t>(index));
  std::string text = fmt::format("phase {} of {}: ", index + 1, recipe.phases.size());
  text += phase.steps > 0 ? fmt::format("{} steps", phase.steps)
                          : fmt::format("{} epochs", phase.epochs);
  text += fmt::format(", lr {}", phase.lr > 0 ? phase.lr : recipe.optimizer.lr);
  if (phase.image_size > 0) text += fmt::format(", images of {} pixels", phase.image_size);
  if (!phase.frozen.empty()) text += fmt::format(", frozen {}", fmt::join(phase.frozen, ", "));
  return text;
}

}  // namespace dstrain
