#include <memory>
#include <string>
#include <vector>

#include "cmd/command.h"
#include "cmd/host_options.h"
#include "cmd/launch_job.h"
#include "cmd/recipe_words.h"
#include "cmd/submit_options.h"
#include "cmd/word_job.h"

namespace dstrain {

Command add_launch(CLI::App& root) {
  auto options = std::make_shared<JobOptions>();
  auto submit = std::make_shared<SubmitRequest>();
  CLI::App* app = root.add_subcommand(
      "launch",
      "Train: start one rank per GPU of this machine, of hosts by ssh, or of a SLURM allocation.");
  app->footer(
      "Ctrl-C finishes the step, saves a checkpoint and ends; Ctrl-C twice ends at once. SIGTERM "
      "and SIGUSR1 do the same\n"
      "for a scheduler: exit code 75 says that the job wants to go on. On a failure it prints "
      "which rank failed where and\n"
      "why, and writes failure.json into the run directory; see launcher/README.md.\n"
      "Started once on each host by another program (srun, mpirun, pbsdsh, Kubernetes) the "
      "processes "
      "meet by PMIx or by\n"
      "variables: DSTRAIN_INDEX, DSTRAIN_HOSTS, DSTRAIN_CONTROLLER, DSTRAIN_JOIN_SECRET; see "
      "launcher/README.md.\n"
      "Examples:\n"
      "  dstrain launch recipes/quickstart.yaml --ranks 2 --set run.epochs=5\n"
      "  dstrain launch vit-base zero2 8 64 10\n"
      "  dstrain launch vit-base zero2 2 8 64 10 --hosts n1:8,n2:8\n"
      "  dstrain launch recipes/vit/vit-base_cifar100_zero2.yaml --hosts n1:8,n2:8 --max-restarts "
      "3");
  add_job_options(*app, *options);
  auto more = std::make_shared<std::vector<std::string>>();
  app->add_option("words", *more, kWordsHelp)->expected(0, 5);
  app->add_flag("--auto", options->search,
                "Train with the layout that `dstrain plan --auto` puts first for these ranks: "
                "degrees, ZeRO stage,\nmicro-batch and how many run at once are searched, "
                "batch.global stays.");
  app->add_flag(
      "--fit", options->fit,
      "Where the recipe does not fit the memory of the GPUs: train with the fastest of "
      "the settings that do, of a smaller\nbatch.micro, recomputation, MLPs in tiles, ZeRO "
      "stages, and states, inputs of blocks or weights on the host. batch.global\nstays.");
  app->add_option("--machine", options->machine,
                  "Which cards the ranks have, as of plan, to look at their memory before they "
                  "start. Default: those of this machine\nwhere the ranks run on it; other hosts "
                  "look at theirs when ranks start.");
  add_run_options(*app, options->launch);
  add_submit_options(*app, *submit);
  return {app, [options, submit, more] {
            complete_submit_options(*options, *submit);
            const bool jobset = submit->emit == "jobset";
            take_words(*more, *options, submit->slurm || jobset ? &submit->options : nullptr);
            if (jobset) return emit_jobset(*options, *submit);
            return submit->slurm ? submit_job(*options, *submit) : launch_job(*options);
          }};
}

}  // namespace dstrain
