#include "cmd/plan.h"

#include <memory>

#include "cmd/command.h"
#include "cmd/overrides.h"
#include "cmd/recipe_plan.h"
#include "engine/base/output.h"
#include "recipes/schema/load.h"

namespace dstrain {
int plan(const PlanOptions& options) {
  const LoadedRecipe loaded = load_recipe(options.recipe, options.overrides);
  for (const Diagnostic& warning : loaded.warnings) {
    print_error(format(warning) + "\n");
  }
  const Machine machine =
      plan_machine(options.machine, loaded.recipe.parallel.backend == Backend::gloo);
  const RecipePlan made = plan_recipe(loaded, options.ranks, machine);
  const std::string text = options.json ? plan_json(made.report, made.strategy, made.cost)
                                        : plan_text(made.report, made.strategy, made.cost);
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
