#include "cmd/recipe_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "cmd/planned_model.h"
#include "engine/base/error.h"
#include "engine/base/output.h"
#include "engine/device/numa.h"
#include "engine/models/gpu_sizes.h"
#include "engine/program/known_gpus.h"
#include "engine/program/measured_machine.h"
#include "engine/recipe/compute.h"
#include "engine/recipe/phases.h"

namespace dstrain {
namespace {

Machine named_machine(const std::string& name, bool on_cpu) {
  const std::vector<MeasuredRates> measured = read_measured(measured_file());
  if (!name.empty()) return choose_machine(name, measured);
  const std::string gpu = installed_gpu();
  const auto found = find_measured(measured, on_cpu ? "CPU" : gpu);
  if (found) return *found;
  if (on_cpu) return cpu();
  if (gpu.empty()) return h200();
  if (find_gpu(gpu) == nullptr)
    throw Error(ErrorKind::usage, fmt::format("the rates of this machine's {} are not known", gpu),
                fmt::format("`dstrain doctor --measure` measures them, --machine NAME plans for "
                            "another card: {}",
                            fmt::join(machine_names(), ", ")));
  return built_in_machine(gpu);
}

}  // namespace

Machine plan_machine(const MachineOptions& options, bool on_cpu, int ranks) {
  Machine machine = named_machine(options.name, on_cpu);
  if (machine.shares_memory) {
    machine.ranks_per_node = std::max(ranks, 1);
    machine.threads = 0;
    if (options.name.empty()) {
      machine.cores = static_cast<int>(usable_cores().size());
      machine.cores_source = "as this machine has";
    }
  }
  if (options.per_node > 0) machine.ranks_per_node = options.per_node;
  if (options.network_gb_per_s > 0) {
    machine.network_bytes_per_s = 1e9 * options.network_gb_per_s;
    machine.network_source =
        fmt::format("the rate is --network's, the hop {}", machine.network_source);
  }
  return machine;
}

namespace {

/// The error, with the place of the key that it begins with.
Error placed(const Error& error, const LoadedRecipe& loaded) {
  const std::string text = error.what();
  const auto origin = std::ranges::find_if(
      loaded.origins, [&](const Origin& one) { return text.starts_with(one.path + ": "); });
  if (origin == loaded.origins.end() || origin->origin == "default") return error;
  return {error.kind(), origin->origin + ": " + text, error.hint()};
}

struct PlannedStep {
  Recipe recipe;
  ModelCost cost;
  Strategy strategy;
};

/// Step of one phase.
PlannedStep planned_step(const LoadedRecipe& loaded, int ranks, const Machine& machine,
                         int phase) try {
  const Recipe& whole = loaded.recipe;
  Recipe recipe = phase_recipe(whole, phase);
  settle_compute(recipe, machine.limits, machine.name);
  const Mesh mesh(ranks, mesh_degrees(recipe.parallel, ranks));
  const Splits splits = splits_of(recipe.parallel, mesh, 0);
  if (phase == 0) check_planned_phases(whole, splits);
  ModelCost cost = planned_model(recipe, splits, machine.limits).cost;
  Strategy strategy = make_strategy(recipe, cost, ranks, machine);
  return {.recipe = std::move(recipe), .cost = std::move(cost), .strategy = std::move(strategy)};
} catch (const Error& error) {
  throw placed(error, loaded);
}

void require_sizes(const LoadedRecipe& loaded, const ModelCost& cost) try {
  require_gpu_sizes(loaded.recipe.model, cost);
} catch (const Error& error) {
  throw placed(error, loaded);
}

}  // namespace

void require_sizes(const LoadedRecipe& loaded, const Machine& machine) {
  require_sizes(loaded, planned_model(loaded.recipe, {}, machine.limits).cost);
}

RecipePlan plan_recipe(const LoadedRecipe& loaded, int ranks, const Machine& machine, int phase) {
  PlannedStep step = planned_step(loaded, ranks, machine, phase);
  require_sizes(loaded, step.cost);
  PlanReport report = make_plan(loaded.name, step.recipe, step.strategy, step.cost, machine);
  return {.cost = std::move(step.cost),
          .strategy = std::move(step.strategy),
          .report = std::move(report)};
}

void require_fit(LoadedRecipe loaded, int ranks, const std::optional<Machine>& gpus) {
  Recipe& recipe = loaded.recipe;
  recipe.data.path.clear();
  for (MemberConfig& member : recipe.data.mixture) member.path.clear();
  recipe = with_known_sizes(std::move(recipe));
  constexpr int kAnyClasses = 1000;  // the data may say how many
  if (recipe.model.classes == 0 && recipe.model.weights.empty())
    recipe.model.classes = is_language_model(recipe.model) ? 0 : kAnyClasses;
  const Backend backend = recipe.parallel.backend;
  const Machine machine = backend == Backend::gloo ? cpu() : gpus.value_or(h200());
  for (int phase = 0; phase < num_phases(recipe); ++phase) {
    const PlannedStep step = planned_step(loaded, ranks, machine, phase);
    try {
      require_sizes(loaded, step.cost);
    } catch (const Error& error) {
      if (gpus || backend == Backend::nccl) throw;
      print_error("warning: {}; ranks on GPUs will refuse it\n  hint: {}\n", error.what(),
                  error.hint());
    }
  }
}

}  // namespace dstrain
