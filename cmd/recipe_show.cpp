#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "cmd/command.h"
#include "cmd/overrides.h"
#include "cmd/recipe_words.h"
#include "engine/base/output.h"
#include "engine/recipe/load.h"
#include "engine/recipe/render.h"

namespace dstrain {
namespace {

struct ShowOptions {
  std::string recipe;
  std::vector<std::string> overrides;
  bool json = false;
};

int show(const ShowOptions& options) {
  const LoadedRecipe loaded = load_recipe(options.recipe, options.overrides);
  for (const Diagnostic& warning : loaded.warnings) print_error("{}\n", format(warning));
  print_text(options.json ? recipe_json(loaded) : resolved_yaml(loaded));
  return 0;
}

}  // namespace

Command add_recipe_show(CLI::App& root) {
  auto options = std::make_shared<ShowOptions>();
  CLI::App* app = root.add_subcommand(
      "show",
      "Print a recipe with every value that a run would use, and where each came from: a line of\n"
      "the file, --set or the default. The output is a recipe that gives the same run.\n"
      "Example: dstrain recipe show recipes/quickstart.yaml --set optimizer.lr=1e-3");
  add_recipe(*app, options->recipe);
  add_overrides(*app, options->overrides);
  app->add_flag("--json", options->json, "Print JSON for programs: file, recipe, origins.");
  return {app, [options] { return show(*options); }};
}

}  // namespace dstrain
