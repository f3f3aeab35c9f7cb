#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cmd/command.h"
#include "cmd/host_options.h"
#include "cmd/launch_job.h"
#include "cmd/overrides.h"
#include "cmd/recipe_words.h"
#include "engine/base/error.h"
#include "engine/base/input_file.h"
#include "engine/base/run_layout.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

/// The job that evaluates `job.recipe`, which is a run, a checkpoint or a recipe.
int evaluate(JobOptions job) {
  const std::string source = job.recipe;
  if (path_kind(source, ErrorKind::usage) != PathKind::folder) {
    if (path_kind(source, ErrorKind::usage) == PathKind::nothing) {
      job.recipe = recipe_called(source);
      if (job.recipe.empty())
        throw Error(ErrorKind::usage, source + " is no folder, no file and no recipe's name",
                    "give a run directory, a checkpoint directory or a recipe");
    }
    job.rank_arguments = {"--evaluate", "-"};
    return launch_job(job);
  }
  const fs::path whole = fs::absolute(source);
  const RunLayout run = parse_checkpoint_name(whole) ? RunLayout::around(whole) : RunLayout(whole);
  if (!path_exists(run.recipe(), ErrorKind::usage))
    throw Error(ErrorKind::usage, source + " is neither a run nor a checkpoint in one",
                "give a run directory, one of its checkpoints, or a recipe whose model.weights is "
                "the model");
  job.recipe = run.recipe().string();
  job.rank_arguments = {"--evaluate", whole.string()};
  job.overrides.insert(job.overrides.begin(),
                       "run.output=" + (run.root() / "evaluations").string());
  return launch_job(job);
}

}  // namespace

Command add_evaluate(CLI::App& root) {
  auto options = std::make_shared<JobOptions>();
  CLI::App* app = root.add_subcommand(
      "evaluate",
      "Loss and accuracy of a run, a checkpoint or a recipe's weights over the test split.");
  app->footer(
      "Of a run, its best checkpoint (run.best), else its newest. Ranks may be others than in the "
      "run; evaluation.json has the figures, of a mixture each member's, too, and of images "
      "confusion.csv and classes.csv beside it "
      "which classes are taken for which.\n"
      "`dstrain generate RUN --test 0` scores answers.\n"
      "Example: dstrain evaluate runs/quickstart-20261121-101500-3fa2c1 --ranks 1\n"
      "         dstrain evaluate recipes/bloom/bloom-560m_squad.yaml --set model.weights=FOLDER");
  app->add_option("source", options->recipe,
                  "Run directory, checkpoint directory, or recipe by its file or name.")
      ->required();
  add_overrides(*app, options->overrides);
  add_host_options(*app, options->launch);
  return {app, [options] { return evaluate(*options); }};
}

}  // namespace dstrain
