#include "engine/base/model_folder.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/input_file.h"
#include "engine/base/run_layout.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

/// "OWNER/NAME", as Hugging Face writes it.
bool is_hub_name(const std::string& name) {
  return std::ranges::count(name, '/') == 1 && !name.starts_with('/') && !name.ends_with('/') &&
         !name.starts_with('.') && !name.starts_with('~');
}

}  // namespace

std::string hint_for_model_folder(const fs::path& path) {
  const std::string name = path.string();
  if (!path_exists(path)) {
    if (name.starts_with("hf://"))
      return fmt::format("the Hub's cache does not have it: `dstrain fetch {}`", name);
    if (!is_hub_name(name)) return "";
    // Recipes look in models/, which is no owner.
    if (name.starts_with("models/"))
      return fmt::format(
          "there is no such folder: `dstrain fetch OWNER/{} --to {}` "
          "(recipes/guides/data-and-models.md)",
          path.filename().string(), name);
    return fmt::format("there is no such folder: `dstrain fetch {}` brings it from the Hub", name);
  }
  if (path_exists(path / run_file::kManifest) ||
      (path_exists(path / run_file::kRecipe) && path_exists(RunLayout(path).checkpoints())))
    return fmt::format(
        "it is a {} of dstrain: `dstrain checkpoint export {} FOLDER`, then name that folder",
        path_exists(path / run_file::kManifest) ? "checkpoint" : "run", name);
  if (path_exists(path / "adapter_config.json"))
    return "it is an adapter: lora.weights takes it, and model.weights the model it was made for";
  if (path_exists(path / "snapshots"))
    return "it is of the cache of Hugging Face: name the folder below its snapshots";
  return "";
}

}  // namespace dstrain
