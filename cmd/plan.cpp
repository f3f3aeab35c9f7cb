#include "cmd/plan.h"

#include <memory>

#include "cmd/command.h"
#include "cmd/overrides.h"
#include "cmd/planned_model.h"
#include "engine/base/output.h"
#include "engine/program/measured_machine.h"
#include "engine/program/plan_report.h"
#include "recipes/schema/load.h"

namespace dstrain {
namespace {

/// As asked for; else what was measured for the device that this machine has, else the built-in
/// one.
Machine plan_machine(const std::string& name, bool on_cpu) {
  const std::vector<MeasuredRates> measured = read_measured(measured_file());
  if (!name.empty()) return choose_machine(name, measured);
  const auto found = find_measured(measured, on_cpu ? "CPU" : installed_gpu());
  return found ? *found : on_cpu ? cpu() : h200();
}

}  // namespace

int plan(const PlanOptions& options) {
  const LoadedRecipe loaded = load_recipe(options.recipe, options.overrides);
  for (const Diagnostic& warning : loaded.warnings) {
    print_error(format(warning) + "\n");
  }
  const Recipe& recipe = loaded.recipe;
  const ModelCost cost = planned_model(recipe).cost;
  const Machine machine = plan_machine(options.machine, recipe.parallel.backend == Backend::gloo);
  const Strategy strategy = make_strategy(recipe, cost, options.ranks, machine);
  const PlanReport report = make_plan(loaded.name, recipe, strategy, cost, machine);
  const std::string text =
      options.json ? plan_json(report, strategy, cost) : plan_text(report, strategy, cost);
  print_text(text);
  return 0;
}

Command add_plan(CLI::App& root) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* app = root.add_subcommand(
      "plan", "Predict memory, bytes and time of one training step, without a GPU.");
  app->footer("Example: dstrain plan recipes/quickstart.yaml --ranks 4096");
  app->add_option("recipe", options->recipe, "Recipe file (YAML).")->required();
  app->add_option("--ranks", options->ranks, "Ranks in the world. Default: 1.")
      ->check(CLI::Range(1, 1 << 20));
  add_overrides(*app, options->overrides);
  app->add_option("--machine", options->machine,
                  "Rates and memory of one rank: h200, cpu, or a part of the name of a device that "
                  "doctor --measure\n"
                  "has measured, as in H100. Default: this machine's device if measured, else cpu "
                  "under gloo and h200.");
  app->add_flag("--json", options->json, "Print one JSON object instead of tables.");
  return {app, [options] { return plan(*options); }};
}

}  // namespace dstrain
