#include <memory>

#include "cmd/command.h"
#include "cmd/launch_job.h"

namespace dstrain {

Command add_launch(CLI::App& root) {
  auto options = std::make_shared<JobOptions>();
  CLI::App* app = root.add_subcommand(
      "launch", "Train: start one rank per GPU of this machine, as the recipe says.");
  app->footer(
      "Ctrl-C finishes the step, saves a checkpoint and ends; Ctrl-C twice ends at once.\n"
      "Example: dstrain launch recipes/quickstart.yaml --ranks 2 --set run.epochs=5");
  add_job_options(*app, *options);
  app->add_option("--resume", options->resume,
                  "auto: go on with the newest run of this recipe that has a checkpoint, or start "
                  "anew; never;\n"
                  "or DIR: a run directory to go on with, or a checkpoint to start a new run from. "
                  "Default: never.");
  app->add_flag("--dry-run", options->dry_run,
                "Print who would run where, with which environment and command; start nothing.");
  return {app, [options] { return launch_job(*options); }};
}

}  // namespace dstrain
