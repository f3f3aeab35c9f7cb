#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "cmd/command.h"
#include "cmd/engine_library.h"
#include "cmd/hub_names.h"
#include "cmd/needed_files.h"
#include "cmd/overrides.h"
#include "cmd/recipe_words.h"
#include "engine/base/output.h"
#include "engine/base/words.h"
#include "engine/recipe/load.h"

namespace dstrain {
namespace {

struct CheckOptions {
  std::vector<std::string> recipes;
  std::vector<std::string> overrides;
  bool files = false;  ///< look for what the recipes name
};

/// Mistakes and warnings go to stderr, one "ok" line per good recipe to stdout.
bool check_one(const std::string& file, const CheckOptions& options) {
  try {
    const LoadedRecipe loaded = load_recipe(file, options.overrides);
    for (const Diagnostic& warning : loaded.warnings) print_error("{}\n", format(warning));
    if (!recipe_fits(file, options.overrides)) return false;
    bring_named(file, options.overrides, Bring::nothing);
    if (options.files) {
      if (const std::vector<Diagnostic> missing = missing_files(loaded); !missing.empty())
        throw RecipeError(missing);
    }
    print_text("{}: ok{}\n", file,
               loaded.warnings.empty() ? ""
                                       : fmt::format(", {} warning{}", loaded.warnings.size(),
                                                     plural(loaded.warnings.size())));
    return true;
  } catch (const RecipeError& error) {
    print_error("{}\n", error.what());
  } catch (const Error& error) {
    if (options.recipes.size() == 1) throw;
    print_error("error: {}\n  hint: {}\n", error.what(), error.hint());
  }
  return false;
}

int check_recipes(const CheckOptions& options) {
  std::size_t num_failed = 0;
  for (const std::string& file : options.recipes) {
    if (!check_one(file, options)) ++num_failed;
  }
  if (!has_engine_library())
    print_error("note: without the engine library nobody has looked whether models fit\n");
  if (num_failed > 0 && options.recipes.size() > 1) {
    print_error("{} of {} recipes have mistakes\n", num_failed, options.recipes.size());
  }
  return num_failed == 0 ? 0 : exit_code(ErrorKind::usage);
}

}  // namespace

Command add_recipe_check(CLI::App& root) {
  auto options = std::make_shared<CheckOptions>();
  CLI::App* app = root.add_subcommand(
      "check",
      "Read recipes and list every mistake with its place and how to fix it; start nothing.\n"
      "Of a recipe without mistakes, whether its axes divide the model, whether GPUs take its "
      "sizes\n"
      "(a warning, unless parallel.backend is nccl), and whether dstrain has what the config.json "
      "of\n"
      "model.weights asks for.\n"
      "Exit code 0 when all are good (warnings allowed), 64 otherwise.\n"
      "Example: dstrain recipe check recipes/quickstart.yaml --set batch.micro=32");
  add_recipes(*app, options->recipes);
  add_overrides(*app, options->overrides);
  app->add_flag("--files", options->files,
                "Look on this machine for data, weights, tokenizer and adapter, too, and list all "
                "that is missing.");
  return {app, [options] { return check_recipes(*options); }};
}

}  // namespace dstrain
