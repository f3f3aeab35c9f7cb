#include "cmd/draft_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "cmd/recipe_plan.h"
#include "engine/base/input_file.h"
#include "engine/base/units.h"
#include "engine/program/recompute_choice.h"
#include "engine/recipe/load.h"

namespace dstrain {
namespace {

constexpr int kMaxMicro = 64;

/// A recipe of `choices` with what its step takes.
PlannedDraft plan_of_draft(const draft::Facts& facts, const draft::Choices& choices,
                           const std::string& title, const Machine& machine) {
  PlannedDraft made{.choices = choices,
                    .yaml = draft::draft_yaml(draft::draft_recipe(facts, choices), title)};
  LoadedRecipe loaded = parse_recipe(made.yaml, "the drafted recipe");
  // The sizes stand in the recipe now, and the classes.
  const std::string& weights = loaded.recipe.model.weights;
  if (!weights.empty() && !path_exists(std::filesystem::path(weights) / "config.json"))
    loaded.recipe.model.weights.clear();
  loaded.recipe.data.path.clear();
  const RecipePlan plan = plan_recipe(loaded, choices.ranks, machine);
  made.memory = plan.report.step.ledger.total();
  made.limit = plan.report.machine.shares_memory ? 0 : plan.report.machine.device_memory;
  made.step_s = plan.report.step.step_s;
  made.choices.parameters = count_parameters(plan.cost, plan.strategy.layout).all;
  return made;
}

}  // namespace

std::string card_name(const Machine& machine) {
  return machine.name.substr(0, machine.name.find(" ("));
}

bool PlannedDraft::fits() const {
  return limit == 0 ||
         static_cast<double>(memory) <= (1 - kMemoryReserve) * static_cast<double>(limit);
}

namespace {

std::string reason_of(const PlannedDraft& made, const Machine& machine, bool is_text) {
  if (!made.fits())
    return fmt::format("does not fit: {} planned, and {} has {}", format_bytes(made.memory),
                       card_name(machine), format_bytes(made.limit));
  return fmt::format("{} at once: the fastest that fits {}, {} planned",
                     is_text ? "rows" : "images", card_name(machine), format_bytes(made.memory));
}

}  // namespace

PlannedDraft planned_draft(const draft::Facts& facts, draft::Choices choices,
                           const std::string& title, const Machine& machine) {
  const int max = std::clamp(draft::global_batch(facts) / choices.ranks, 1, kMaxMicro);
  std::optional<PlannedDraft> best;
  for (const bool recompute : {false, true}) {
    choices.recompute = recompute;
    for (choices.micro = 1; choices.micro <= max; choices.micro *= 2) {
      PlannedDraft made = plan_of_draft(facts, choices, title, machine);
      if (!made.fits()) break;  // larger ones take more memory
      if (!best || made.step_s < best->step_s) best = std::move(made);
    }
    if (best) break;
  }
  if (!best) {
    choices.micro = 1;
    best = plan_of_draft(facts, choices, title, machine);
  }
  // Once more, with what the plan said.
  best->choices.why_micro = reason_of(*best, machine, facts.data.is_text());
  best->yaml = draft::draft_yaml(draft::draft_recipe(facts, best->choices), title);
  return *std::move(best);
}

}  // namespace dstrain
