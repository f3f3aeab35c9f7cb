#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "engine/base/error.h"
#include "engine/models/json_file.h"
#include "engine/models/parts.h"
#include "engine/models/random_weights.h"
#include "engine/models/vit_config.h"
#include "engine/models/weights.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;
using Problems = std::vector<std::string>;
constexpr std::size_t kMostShown = 20;

/// "a, b and 7 more".
std::string listed(const Problems& items, const char* separator) {
  const std::size_t shown = std::min(items.size(), kMostShown);
  std::string text = fmt::format(
      "{}",
      fmt::join(items.begin(), items.begin() + static_cast<std::ptrdiff_t>(shown), separator));
  if (items.size() > shown) text += fmt::format("{}and {} more", separator, items.size() - shown);
  return text;
}

/// The tensors of a folder, whichever of its files they lie in.
class Folder {
 public:
  explicit Folder(const fs::path& folder) : path_(folder) {
    const fs::path single = folder / "model.safetensors";
    const fs::path index = folder / "model.safetensors.index.json";
    if (fs::exists(single)) {
      add_file(single);
    } else if (fs::exists(index)) {
      add_index(index);
    } else {
      const bool pickled = fs::exists(folder / "pytorch_model.bin");
      throw Error(
          ErrorKind::data,
          fmt::format("{}: neither model.safetensors nor model.safetensors.index.json is there",
                      folder.string()),
          pickled ? "pytorch_model.bin can run code when it is read; save the model again as "
                    "safetensors with transformers"
                  : "model.weights needs a folder that transformers' save_pretrained wrote");
    }
  }

  struct Place {
    const SafetensorsFile* file = nullptr;
    std::string name;  ///< in the file
    [[nodiscard]] const SafetensorsFile::Entry& entry() const { return file->entries().at(name); }
  };

  /// The first of `names` that is there.
  [[nodiscard]] std::optional<Place> find(const std::vector<std::string>& names) const {
    for (const std::string& name : names) {
      const auto found = tensors_.find(name);
      if (found != tensors_.end()) return Place{found->second, name};
    }
    return std::nullopt;
  }
  [[nodiscard]] const std::map<std::string, const SafetensorsFile*>& tensors() const {
    return tensors_;
  }
  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  const SafetensorsFile& add_file(const fs::path& path) {
    files_.push_back(std::make_unique<SafetensorsFile>(path));
    for (const auto& [name, entry] : files_.back()->entries()) {
      const auto [place, added] = tensors_.emplace(name, files_.back().get());
      if (!added) {
        throw Error(ErrorKind::data, fmt::format("tensor '{}' is in both {} and {}", name,
                                                 place->second->path().string(), path.string()));
      }
    }
    return *files_.back();
  }

  void add_index(const fs::path& index) {
    const nlohmann::json json = read_json_object(index);
    const auto map = json.find("weight_map");
    if (map == json.end() || !map->is_object()) {
      throw Error(ErrorKind::data, fmt::format("{}: no weight_map", index.string()));
    }
    std::set<std::string> names;
    for (const auto& [tensor, file] : map->items()) {
      const std::string name = file.is_string() ? file.get<std::string>() : file.dump();
      if (!file.is_string() || fs::path(name).filename() != name || name == "." || name == "..") {
        throw Error(ErrorKind::data,
                    fmt::format("{}: tensor '{}' is in {}, which is no file name of this folder",
                                index.string(), tensor, file.dump()));
      }
      names.insert(name);
    }
    for (const std::string& name : names) add_file(path_ / name);
    Problems missing;
    for (const auto& [tensor, file] : map->items()) {
      const auto found = tensors_.find(tensor);
      if (found == tensors_.end() || found->second->path().filename() != file.get<std::string>()) {
        missing.push_back(fmt::format("{}: tensor '{}' is not in {}", index.string(), tensor,
                                      file.get<std::string>()));
      }
    }
    if (!missing.empty()) throw Error(ErrorKind::data, listed(missing, "\n"));
  }

  fs::path path_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, const SafetensorsFile*> tensors_;
};

bool is_head(const std::string& name) { return name.starts_with("classifier."); }

/// "[100, 768]".
std::string shape_text(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

class FileWeights final : public WeightSource {
 public:
  FileWeights(const fs::path& folder, Model& model, std::int64_t seed,
              std::vector<std::string>& notes)
      : folder_(folder), seed_(seed) {
    Problems problems;
    std::vector<const NamedShape*> parts;
    for (const auto& block : model.blocks) {
      for (const Parameter* parameter : block->parameters()) {
        for (const NamedShape& part : parameter->parts) parts.push_back(&part);
      }
    }
    const std::optional<std::string> head = reason_for_new_head(parts);
    for (const NamedShape* part : parts) {
      if (head && is_head(part->name)) continue;
      place(*part, problems);
    }
    if (!problems.empty()) {
      throw Error(ErrorKind::data, listed(problems, "\n"),
                  "the weights do not fit config.json beside them or the recipe's model");
    }
    if (head) notes.push_back(*head);
    note_unused(head.has_value(), notes);
  }

  void read(const Parameter& parameter, Range range, std::span<float> out) const override {
    for_each_part(parameter, range, out,
                  [&](const NamedShape& part, std::int64_t begin, std::span<float> piece) {
                    const auto found = places_.find(part.name);
                    if (found == places_.end()) {
                      draw_weights(seed_, part.name, parameter.init, parameter.init_std, begin,
                                   piece);
                    } else {
                      found->second.file->read(found->second.name, begin, piece);
                    }
                  });
  }

 private:
  /// A head is new when the file's is for another number of classes, or when the file is a model
  /// without one.
  [[nodiscard]] std::optional<std::string> reason_for_new_head(
      const std::vector<const NamedShape*>& parts) const {
    const auto weight = std::find_if(parts.begin(), parts.end(), [](const NamedShape* part) {
      return part->name == "classifier.weight";
    });
    DSTRAIN_CHECK(weight != parts.end(), "a model without classifier.weight");
    const std::int64_t classes = (*weight)->shape.at(0);
    const auto place = folder_.find({"classifier.weight"});
    if (!place) {
      if (folder_.find({"classifier.bias"}) || says_it_has_head()) return std::nullopt;
      return fmt::format("{} has no classifier; a new head for {} classes is drawn at random",
                         folder_.path().string(), classes);
    }
    const std::vector<std::int64_t>& shape = place->entry().shape;
    if (shape.size() != 2 || shape[0] == classes || shape[1] != (*weight)->shape.at(1))
      return std::nullopt;
    return fmt::format(
        "{} has a classifier for {} classes, the model {}; a new head (classifier.weight, "
        "classifier.bias) is drawn at random",
        folder_.path().string(), shape[0], classes);
  }

  [[nodiscard]] bool says_it_has_head() const {
    const fs::path path = folder_.path() / "config.json";
    if (!fs::exists(path)) return false;
    const nlohmann::json json = read_json_object(path);
    const auto found = json.find("architectures");
    return found != json.end() && found->is_array() &&
           std::find(found->begin(), found->end(), "ViTForImageClassification") != found->end();
  }

  void place(const NamedShape& part, Problems& problems) {
    const std::optional<Folder::Place> found = folder_.find(vit_file_names(part.name));
    if (!found) {
      problems.push_back(fmt::format("{}: no tensor '{}' {}", folder_.path().string(), part.name,
                                     shape_text(part.shape)));
      return;
    }
    const SafetensorsFile::Entry& entry = found->entry();
    const std::string what =
        fmt::format("{}: tensor '{}'", found->file->path().string(), found->name);
    if (entry.shape != part.shape) {
      problems.push_back(fmt::format("{} is {}, the model needs {}", what, shape_text(entry.shape),
                                     shape_text(part.shape)));
    } else if (entry.dtype != "F32" && entry.dtype != "F16" && entry.dtype != "BF16") {
      problems.push_back(
          fmt::format("{} is {}; dstrain reads F32, F16 and BF16", what, entry.dtype));
    } else {
      places_.emplace(part.name, *found);
    }
  }

  void note_unused(bool new_head, std::vector<std::string>& notes) const {
    std::set<std::string> used;
    for (const auto& [part, place] : places_) used.insert(place.name);
    Problems unused;
    for (const auto& [name, file] : folder_.tensors()) {
      if (!used.contains(name) && !(new_head && is_head(name))) unused.push_back(name);
    }
    if (!unused.empty()) {
      notes.push_back(fmt::format("{}: not used by this model: {}", folder_.path().string(),
                                  listed(unused, ", ")));
    }
  }

  Folder folder_;
  std::int64_t seed_;
  std::map<std::string, Folder::Place> places_;  ///< by part name
};

}  // namespace

std::unique_ptr<WeightSource> open_weights(const fs::path& folder, Model& model, std::int64_t seed,
                                           std::vector<std::string>& notes) {
  return std::make_unique<FileWeights>(folder, model, seed, notes);
}

}  // namespace dstrain
