#include "cmd/short_launch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "engine/base/error.h"
#include "engine/base/output.h"
#include "recipes/import/short_form.h"
#include "recipes/schema/load.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

/// recipes/ of an installed tree, of the tree that was built, or here.
fs::path recipes_folder() {
  const fs::path program = fs::read_symlink("/proc/self/exe").parent_path();
  for (const fs::path& folder :
       {program.parent_path() / "share/dstrain/recipes",
        program.parent_path().parent_path().parent_path() / "recipes", fs::path("recipes")}) {
    if (fs::is_directory(folder)) return folder;
  }
  throw Error(ErrorKind::usage, "no folder of recipes is near this dstrain", "name a recipe file");
}

}  // namespace

void take_short_form(const std::vector<std::string>& more, JobOptions& job, SubmitRequest& submit) {
  if (more.empty()) return;
  if (job.launch.request.ranks > 0)
    throw Error(ErrorKind::usage, "the number of ranks is given twice", "leave --ranks out");
  std::vector<std::string> words = {job.recipe};
  words.insert(words.end(), more.begin(), more.end());
  const importing::ShortForm form =
      importing::read_short_form(words, importing::recipes_below(recipes_folder()));
  job.recipe = form.recipe.string();
  job.overrides.insert(job.overrides.begin(), form.overrides.begin(), form.overrides.end());
  job.launch.request.ranks = form.ranks;
  launcher::SubmitOptions& options = submit.options;
  if (submit.slurm && options.gpus_per_node == 0 && options.ranks_per_node == 0)
    options.gpus_per_node = form.ranks / std::max(1, options.nodes);
  print_error("{} with {} on {} ranks\n", job.recipe, fmt::join(form.overrides, ", "), form.ranks);
  if (job.launch.dry_run && !submit.slurm)
    print_text(resolved_yaml(load_recipe(job.recipe, job.overrides)));
}

}  // namespace dstrain
