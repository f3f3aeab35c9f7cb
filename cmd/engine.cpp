#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "cmd/command.h"
#include "cmd/hub_names.h"
#include "cmd/input_path.h"
#include "cmd/number_option.h"
#include "cmd/overrides.h"
#include "cmd/recipe_words.h"
#include "engine/comm/rendezvous.h"
#include "engine/train/session/train.h"

namespace dstrain {

Command add_engine(CLI::App& root) {
  auto options = std::make_shared<TrainOptions>();
  CLI::App* app = root.add_subcommand(
      "engine",
      "Run one rank of a training job. RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT "
      "say which, or what srun and mpirun\n"
      "set; without any this process is the only rank. `dstrain launch` starts it; torchrun, srun "
      "and mpirun can, too:\n"
      "  torchrun --no-python --nproc_per_node=2 dstrain engine recipes/quickstart.yaml");
  add_recipe(*app, options->recipe);
  add_overrides(*app, options->overrides);
  app->add_option(
         "--resume", options->resume,
         "Run directory or checkpoint directory to go on from; default: never, start anew.")
      ->check(not_empty());
  app->add_option("--verify", options->verify_steps,
                  "Instead of training: run this many steps on one rank and under the strategy, "
                  "and compare.")
      ->check(number_in(1, 100));
  app->add_option("--evaluate", options->evaluate,
                  "Instead of training: evaluate a run, a checkpoint, or - for the recipe's weights.")
      ->check(not_empty());
  app->add_option("--measure", options->measure,
                  "Instead of training: measure products and sums of all hosts and write them to this "
                  "file, for `dstrain launch --preflight`.")
      ->type_name("FILE");
  return {app, [options] {
            // Its host may have no part in the cache of the one that launched.
            const RankPlace place = rank_from_environment(std::getenv);
            bring_lacking(options->recipe, options->overrides, place.local_rank == 0);
            return train(*options);
          }};
}

}  // namespace dstrain
