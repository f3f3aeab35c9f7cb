#include "cmd/bench_cell.h"

#include <fmt/format.h>

#include "cmd/recipe_plan.h"
#include "engine/base/error.h"
#include "engine/base/json.h"
#include "engine/device/device.h"

namespace dstrain {
namespace {

std::string gigabytes(Bytes bytes) {
  return fmt::format("{:.3g} GB", static_cast<double>(bytes) / 1e9);
}

}  // namespace

CellPlan plan_cell(const bench::BenchPlan& plan, const bench::Turn& turn) {
  const bench::Case one = bench::cases(plan).at(turn.index);
  CellPlan cell;
  try {
    const LoadedRecipe loaded =
        load_recipe(plan.recipes[one.recipe], bench::turn_overrides(plan, turn));
    const Backend backend = loaded.recipe.parallel.backend;
    const int gpus = backend == Backend::gloo ? 0 : num_gpus();
    const bool on_cpu = backend == Backend::gloo || (backend == Backend::automatic && gpus == 0);
    if (!on_cpu && one.ranks > gpus) {
      cell.refusal = fmt::format("needs {} GPU{}, this machine has {}", one.ranks,
                                 one.ranks == 1 ? "" : "s", gpus);
    }
    const Machine machine = plan_machine({}, on_cpu);
    const RecipePlan made = plan_recipe(loaded, one.ranks, machine);
    cell.plan = json_or_null(plan_json(made.report, made.strategy, made.cost));
    if (cell.refusal.empty() && !made.report.fits() &&
        (!machine.shares_memory || loaded.recipe.memory.limit > 0)) {
      cell.refusal = fmt::format(
          "plan: {}, does not fit the {} of {}", gigabytes(made.report.step.ledger.total()),
          gigabytes(made.report.machine.device_memory), made.report.machine.name);
    }
  } catch (const RecipeError& error) {
    const Diagnostic& first = error.diagnostics().front();
    cell.refusal = fmt::format("{}: {}", first.path, first.message);
  } catch (const Error& error) {
    cell.refusal = error.what();
  }
  return cell;
}

}  // namespace dstrain
