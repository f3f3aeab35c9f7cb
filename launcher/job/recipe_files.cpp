#include "launcher/job/recipe_files.h"

#include "engine/base/run_layout.h"
#include "engine/mesh/mesh.h"
#include "engine/program/strategy.h"

namespace dstrain::launcher {

std::vector<RunFile> recipe_files(const LoadedRecipe& loaded, int world_size) {
  const Mesh mesh(world_size, mesh_degrees(loaded.recipe.parallel, world_size));
  (void)plan_batch(loaded.recipe.batch, mesh.degree(kDataAxes));
  return {{run_file::kRecipe, resolved_yaml(loaded)}};
}

}  // namespace dstrain::launcher
