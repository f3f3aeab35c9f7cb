#include "launcher/launch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <fstream>
#include <memory>

#include "cmd/command.h"
#include "cmd/version.h"
#include "launcher/recipe_files.h"
#include "launcher/standard_output.h"
#include "recipes/schema/load.h"

namespace dstrain {
namespace {

struct Options {
  std::string recipe;
  std::vector<std::string> overrides;
  int ranks = 0;
  std::string resume = "never";
  bool dry_run = false;
};

std::vector<std::string> own_command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  return words;
}

int run(const Options& options) {
  ::signal(SIGPIPE, SIG_IGN);
  launcher::fill_standard_streams();
  launcher::Interrupts interrupts({SIGINT, SIGTERM, SIGHUP});
  const LoadedRecipe loaded = load_recipe(options.recipe, options.overrides);
  for (const Diagnostic& warning : loaded.warnings) {
    fmt::print(stderr, "{}\n", format(warning));
  }
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  launcher::StandardOutput output(STDOUT_FILENO);
  return launcher::launch(
      {.recipe_name = loaded.name,
       .files = [&loaded](int world_size) { return launcher::recipe_files(loaded, world_size); },
       .output = loaded.recipe.run.output,
       .ranks = options.ranks,
       .resume = options.resume,
       .dry_run = options.dry_run,
       .agent_command = {self, "agent"},
       .rank_command = {self, "engine"},
       .build = kVersion,
       .command_line = own_command_line()},
      output.sink(), interrupts);
}

}  // namespace

Command add_launch(CLI::App& root) {
  auto options = std::make_shared<Options>();
  CLI::App* app = root.add_subcommand(
      "launch", "Train: start one rank per GPU of this machine, as the recipe says.");
  app->footer(
      "Ctrl-C finishes the step, saves a checkpoint and ends; Ctrl-C twice ends at once.\n"
      "Example: dstrain launch recipes/quickstart.yaml --ranks 2 --set run.epochs=5");
  app->add_option("recipe", options->recipe, "Recipe file (YAML).")
      ->required()
      ->check(CLI::ExistingFile);
  app->add_option("--set", options->overrides, "Override a value: path.to.key=value. Repeatable.")
      ->expected(1)
      ->take_all();
  app->add_option("--ranks", options->ranks,
                  "Number of ranks. Default: one per visible GPU, or 1 on a machine without.")
      ->check(CLI::PositiveNumber);
  app->add_option("--resume", options->resume,
                  "auto: go on with the newest run of this recipe that has a checkpoint, or start "
                  "anew; never;\n"
                  "or DIR: a run directory to go on with, or a checkpoint to start a new run from. "
                  "Default: never.");
  app->add_flag("--dry-run", options->dry_run,
                "Print who would run where, with which environment and command; start nothing.");
  return {app, [options] { return run(*options); }};
}

}  // namespace dstrain
