#include "launcher/job/recipe_files.h"

#include <fmt/format.h>

#include "engine/base/run_layout.h"
#include "engine/mesh/mesh.h"
#include "engine/program/strategy.h"

namespace dstrain::launcher {

std::vector<RunFile> recipe_files(const LoadedRecipe& loaded, int world_size) {
  const Mesh mesh(world_size, mesh_degrees(loaded.recipe.parallel, world_size));
  (void)plan_batch(loaded.recipe.batch, mesh.degree(kDataAxes));
  return {{run_file::kRecipe, resolved_yaml(loaded)}};
}

std::string price_of_ranks(const Recipe& recipe, int before, int now) {
  const auto batch = [&recipe](int ranks) {
    const Mesh mesh(ranks, mesh_degrees(recipe.parallel, ranks));
    return plan_batch(recipe.batch, mesh.degree(kDataAxes));
  };
  const BatchPlan old = batch(before);
  const BatchPlan fresh = batch(now);
  const std::string ranks = fmt::format("{} ranks in place of {}: ", now, before);
  if (fresh.micro_batches <= old.micro_batches) {
    return ranks + fmt::format("still {} micro-batch{} of {} a rank and step", fresh.micro_batches,
                               fresh.micro_batches == 1 ? "" : "es", fresh.micro);
  }
  std::string text = fmt::format(
      "{} micro-batches of {} a rank and step where it was {}, so a step takes about {:.2f} times "
      "as "
      "long",
      fresh.micro_batches, fresh.micro, old.micro_batches,
      static_cast<double>(fresh.micro_batches) / old.micro_batches);
  const int of_rank = (fresh.global + fresh.data_ranks - 1) / fresh.data_ranks;
  if (fresh.micro * fresh.micro_batches > of_rank) {
    text += fmt::format(
        "; {} of its {} places are fillers: a smaller batch.micro, or a spare host, "
        "would cost less",
        fresh.fillers(), fresh.global + fresh.fillers());
  }
  return ranks + text;
}

}  // namespace dstrain::launcher
