#include "engine/weights/weight_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/base/error.h"
#include "engine/base/input_file.h"
#include "engine/base/json.h"
#include "engine/base/model_folder.h"
#include "engine/weights/misfits.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

/// A file with all tensors, and the index of shards, in the order in which they are looked for.
struct Layout {
  const char* single;
  const char* index;
};
constexpr std::array kLayouts = {
    Layout{"model.safetensors", "model.safetensors.index.json"},
    Layout{"pytorch_model.bin", "pytorch_model.bin.index.json"},
};

/// Advice for a folder without such files, or a file in the place of one: what would do.
std::string folder_hint(const fs::path& path) {
  constexpr const char* kUsual =
      "model.weights needs a folder that transformers' save_pretrained wrote";
  constexpr const char* kRename = "files of torch.save are read under the name pytorch_model.bin";
  if (path_kind(path) == PathKind::file)
    return fmt::format("model.weights needs a folder: move {} into one; {}",
                       path.filename().string(), kRename);
  if (std::string hint = hint_for_model_folder(path); !hint.empty()) return hint;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(path, error)) {
    const fs::path name = entry.path().filename();
    if (name.extension() == ".pth" || name.extension() == ".pt")
      return fmt::format("rename {} there: {}", name.string(), kRename);
    if (name.extension() == ".safetensors")
      return fmt::format("rename {} there to model.safetensors", name.string());
  }
  return kUsual;
}

}  // namespace

std::string listed(const std::vector<std::string>& items, const char* separator) {
  constexpr std::size_t kMaxShown = 20;
  const std::size_t shown = std::min(items.size(), kMaxShown);
  std::string text = fmt::format(
      "{}",
      fmt::join(items.begin(), items.begin() + static_cast<std::ptrdiff_t>(shown), separator));
  if (items.size() > shown) text += fmt::format("{}and {} more", separator, items.size() - shown);
  return text;
}

WeightFolder::WeightFolder(const fs::path& folder) : path_(folder) {
  for (const auto& [single, index] : kLayouts) {
    if (path_exists(folder / single)) {
      add_file(folder / single);
      return;
    }
    if (path_exists(folder / index)) {
      add_index(folder / index);
      return;
    }
  }
  throw Error(
      ErrorKind::data,
      fmt::format("{}: neither model.safetensors nor model.safetensors.index.json is there, nor "
                  "pytorch_model.bin",
                  folder.string()),
      folder_hint(folder));
}

std::optional<WeightFolder::Place> WeightFolder::find(const std::vector<std::string>& names) const {
  for (const std::string& name : names) {
    const auto found = tensors_.find(name);
    if (found != tensors_.end()) return Place{found->second, name};
  }
  return std::nullopt;
}

void WeightFolder::add_file(const fs::path& path) {
  files_.push_back(open_weight_file(path));
  for (const auto& [name, entry] : files_.back()->entries()) {
    const auto [place, added] = tensors_.emplace(name, files_.back().get());
    if (!added) {
      throw Error(ErrorKind::data, fmt::format("tensor '{}' is in both {} and {}", name,
                                               place->second->path().string(), path.string()));
    }
  }
}

void WeightFolder::add_index(const fs::path& index) {
  const nlohmann::json json = read_json_object(index);
  const auto map = json.find("weight_map");
  if (map == json.end() || !map->is_object()) {
    throw Error(ErrorKind::data, fmt::format("{}: no weight_map", index.string()));
  }
  std::set<std::string> names;
  for (const auto& [tensor, file] : map->items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    if (!file.is_string() || fs::path(name).filename() != name || name == "." || name == "..") {
      throw Error(ErrorKind::data,
                  fmt::format("{}: tensor '{}' is in {}, which is no file name of this folder",
                              index.string(), tensor, shown_json(file)));
    }
    names.insert(name);
  }
  for (const std::string& name : names) add_file(path_ / name);
  Misfits misfits;
  for (const auto& [tensor, file] : map->items()) {
    const auto found = tensors_.find(tensor);
    if (found == tensors_.end() || found->second->path().filename() != file.get<std::string>()) {
      misfits.add(Misfits::Way::missing, fmt::format("{}: tensor '{}' is not in {}", index.string(),
                                                     tensor, file.get<std::string>()));
    }
  }
  misfits.throw_if_any("download the folder again: index and files belong together");
}

}  // namespace dstrain
