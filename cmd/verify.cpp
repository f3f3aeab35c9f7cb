#include <memory>
#include <string>
#include <vector>

#include "cmd/command.h"
#include "cmd/launch_job.h"
#include "cmd/number_option.h"
#include "cmd/recipe_words.h"
#include "cmd/word_job.h"

namespace dstrain {

Command add_verify(CLI::App& root) {
  auto options = std::make_shared<JobOptions>();
  auto steps = std::make_shared<int>(3);
  CLI::App* app = root.add_subcommand(
      "verify", "Prove a strategy: run some steps on one rank and under the recipe, and compare.");
  app->footer(
      "Prints loss, gradient norm and weights of both per step, with the tolerance and where it "
      "comes from.\n"
      "Exit code 0: they agree; 1: they differ.\n"
      "Example: dstrain verify recipes/quickstart.yaml --ranks 4 --set parallel.zero.stage=3");
  add_job_options(*app, *options);
  auto more = std::make_shared<std::vector<std::string>>();
  app->add_option("words", *more, kWordsHelp)->expected(0, 5);
  app->add_option(
         "--steps", *steps,
         "Optimizer steps to compare: more than some tens differ by rounding alone. Default: 3.")
      ->check(number_in(1, 50));
  return {app, [options, more, steps] {
            take_words(*more, *options, nullptr);
            options->rank_arguments = {"--verify", std::to_string(*steps)};
            return launch_job(*options);
          }};
}

}  // namespace dstrain
