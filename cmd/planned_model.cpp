#include "cmd/planned_model.h"

#include <filesystem>

#include "engine/base/input_file.h"
#include "engine/base/output.h"
#include "engine/data/images/random_images.h"
#include "engine/program/strategy.h"

namespace dstrain {
namespace {

DatasetFacts facts_of(const Recipe& recipe) {
  return facts_of_kind(recipe.data, recipe.model.image_size, random_kind(recipe));
}

}  // namespace

Recipe with_known_sizes(Recipe recipe) {
  if (!recipe.model.weights.empty() &&
      !path_exists(std::filesystem::path(recipe.model.weights) / "config.json")) {
    print_error("note: model.weights '{}' is not there; planned for the sizes of model.name {}\n",
                recipe.model.weights, recipe.model.name);
    recipe.model.weights.clear();
  }
  return recipe;
}

void check_planned_phases(const Recipe& given, const Splits& splits) {
  if (given.phases.empty()) return;
  const Recipe recipe = with_known_sizes(given);
  const DatasetFacts facts = facts_of(recipe);
  check_phases(recipe,
               {.classes = facts.classes, .sequence = recipe.data.sequence, .splits = splits});
}

PlannedModel planned_model(const Recipe& given, const Splits& splits, const GpuLimits& limits) {
  const Recipe recipe = with_known_sizes(given);
  const DatasetFacts facts = facts_of(recipe);
  PlannedModel planned;
  planned.model = make_trainable_model(
      recipe, {.classes = facts.classes, .sequence = recipe.data.sequence, .splits = splits});
  planned.cost = model_cost(planned.model, {.micro_batch = recipe.batch.micro,
                                            .compute_bytes = state_widths(recipe).compute,
                                            .limits = limits});
  return planned;
}

}  // namespace dstrain
