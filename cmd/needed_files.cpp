#include "cmd/needed_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>

#include "engine/base/input_file.h"
#include "engine/base/output.h"
#include "engine/base/redact.h"
#include "engine/data/images/parquet_places.h"
#include "engine/data/text/test_folders.h"
#include "engine/hub/archives.h"
#include "engine/recipe/datasets.h"
#include "engine/recipe/families.h"
#include "engine/recipe/hub_words.h"
#include "engine/weights/weight_folder.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

class FilesSearch {
 public:
  explicit FilesSearch(const LoadedRecipe& loaded) : loaded_(loaded), recipe_(loaded.recipe) {}

  std::vector<Diagnostic> all() {
    const std::vector<DataConfig> sets = sets_of(recipe_.data);
    for (std::size_t i = 0; i < sets.size(); ++i) {
      const std::string key =
          recipe_.data.mixture.empty() ? "data.path" : member_path(i, "data.path");
      look(key, [&] { data(key, sets[i]); });
    }
    look("model.weights", [this] { weights(); });
    look("data.tokenizer", [this] { tokenizer(); });
    look("lora.weights", [this] { adapter(); });
    return std::move(missing_);
  }

 private:
  void look(const std::string& key, const std::function<void()>& search) {
    try {
      search();
    } catch (const Error& error) {
      add(key, error.what(), error.hint());
    }
  }
  /// A hint that says what brings a known folder.
  [[nodiscard]] std::string with_fetch(const std::string& key, std::string hint) const {
    for (const HubWord& word : hub_words_of(recipe_)) {
      if (word.key != key || word.folder.empty()) continue;
      hint += fmt::format("{}`dstrain fetch RECIPE` brings {}", hint.empty() ? "" : "; ",
                          word.name.text());
    }
    return hint;
  }
  void add(const std::string& key, std::string message, std::string hint) {
    std::string origin = loaded_.file;
    for (const Origin& one : loaded_.origins) {
      if (one.path == key && one.origin != "default") origin = one.origin;
    }
    missing_.push_back({.file = origin,
                        .path = key,
                        .message = std::move(message),
                        .hint = with_fetch(key, std::move(hint))});
  }

  void data(const std::string& key, const DataConfig& data) {
    const DatasetRow& row = dataset_row(data.name);
    if (data.path.empty() && !row.needs_path) return;
    const std::string hint = fmt::format(
        "{}: {}; {}name another place with --set {}=... (recipes read "
        "DSTRAIN_DATA); recipes with _random_ in their names need no data",
        row.spelling, row.text,
        hub::find_archive(row.spelling) == nullptr
            ? ""
            : fmt::format("`dstrain fetch {}` brings it; ", row.spelling),
        key);
    if (data.path.empty()) return add(key, "is empty", hint);
    const bool images = row.needs_path && row.modality == Modality::images;
    const bool tars = row.name == DatasetName::webdataset;
    const bool may_be_tars =
        tars || row.name == DatasetName::jsonl || row.name == DatasetName::chat;
    if (may_be_tars && data.path.find('{') != std::string::npos)
      return;  // named where they are opened
    const PathKind kind = path_kind(data.path);
    if (kind == PathKind::nothing)
      return add(key, fmt::format("'{}' is not there", data.path), hint);
    if (images && !tars && kind != PathKind::folder)
      return add(key, fmt::format("'{}' is not a folder", data.path), hint);
    if (row.parquet && !parquet_places(data.path).empty()) return;
    if (const auto lacking = lacking_of(row, data); !lacking.empty())
      add(key, fmt::format("'{}' lacks {}", data.path, fmt::join(lacking, ", ")), hint);
    if (images && !tars && row.forms.empty()) test_folder(key, data);
  }

  /// What data.path lacks of the form that it has most of.
  [[nodiscard]] std::vector<std::string> lacking_of(const DatasetRow& row,
                                                    const DataConfig& data) const {
    std::vector<std::string> closest;
    std::size_t most_there = 0;
    for (const auto& form : row.forms) {
      std::vector<std::string> lacking;
      for (const std::string_view name : form) {
        // A pack has the images; what it was made of may be gone.
        if (name == "images" && data.pack != Pack::none) continue;
        if (!path_exists(fs::path(data.path) / name)) lacking.emplace_back(name);
      }
      if (lacking.empty()) return {};
      const std::size_t there = form.size() - lacking.size();
      if (closest.empty() || there > most_there) closest = lacking;
      most_there = std::max(most_there, there);
    }
    return closest;
  }

  /// Beside a folder `train` there is one for evaluation; a folder of classes is divided.
  void test_folder(const std::string& key, const DataConfig& data) {
    const fs::path root = data.path;
    if (recipe_.run.evaluate.is_never() || !path_exists(root / "train")) return;
    const auto there = [&](const char* name) { return path_exists(root / name); };
    if (std::ranges::any_of(kTestFolders, there)) return;
    add(key,
        fmt::format("'{}' has a folder 'train' but none of {}", root.string(),
                    fmt::join(kTestFolders, ", ")),
        "put the images for evaluation there, or set run.evaluate: never");
  }

  void weights() {
    if (!recipe_.model.weights.empty()) (void)WeightFolder(recipe_.model.weights);
  }

  /// The tokenizer of text in files; the folder of the weights has it where the recipe names none.
  void tokenizer() {
    const DataConfig& data = recipe_.data;
    if (!any_reads(data, "data.tokenizer")) return;
    const bool own = !data.tokenizer.empty();
    const fs::path place = own ? data.tokenizer : recipe_.model.weights;
    const char* hint = "name the model's folder, or a tokenizer.json, in data.tokenizer";
    if (place.empty())
      return add("data.tokenizer", "no tokenizer: data.tokenizer and model.weights are empty",
                 hint);
    const fs::path file = path_kind(place) == PathKind::folder ? place / "tokenizer.json" : place;
    if (!path_exists(file))
      add(own ? "data.tokenizer" : "model.weights",
          fmt::format("'{}' has no tokenizer: {} is not there", place.string(), file.string()),
          hint);
  }

  void adapter() {
    if (recipe_.lora.weights.empty()) return;
    for (const char* name : {"adapter_config.json", "adapter_model.safetensors"}) {
      const fs::path file = fs::path(recipe_.lora.weights) / name;
      if (!path_exists(file))
        return add("lora.weights", fmt::format("{} is not there", file.string()),
                   "name the folder of an adapter of PEFT");
    }
  }

  const LoadedRecipe& loaded_;
  const Recipe& recipe_;
  std::vector<Diagnostic> missing_;
};

}  // namespace

std::vector<Diagnostic> missing_files(const LoadedRecipe& loaded) {
  return FilesSearch(loaded).all();
}

void look_for_files(const LoadedRecipe& loaded, const FilesLook& look) {
  // The launcher refuses a recipe that holds a secret; nothing of it is printed before.
  if (std::ranges::any_of(loaded.variables, is_secret_name) ||
      !Redactor(own_environment()).find(resolved_yaml(loaded)).empty())
    return;
  std::vector<Diagnostic> missing = missing_files(loaded);
  if (look.resumes)
    std::erase_if(missing, [](const Diagnostic& one) {
      return one.path == "model.weights" || one.path == "lora.weights";
    });
  if (missing.empty()) return;
  if (!look.ranks_here) {
    for (Diagnostic& one : missing) {
      one.severity = Severity::warning;
      one.message = "on this machine " + one.message;
      print_error("{}\n", format(one));
    }
    return;
  }
  if (missing.size() == 1)
    throw Error(ErrorKind::data,
                fmt::format("{}: {}: {}", missing[0].file, missing[0].path, missing[0].message),
                missing[0].hint);
  std::vector<std::string> keys;
  for (const Diagnostic& one : missing) {
    print_error("{}\n", format(one));
    keys.push_back(one.path);
  }
  throw Error(ErrorKind::data,
              fmt::format("{} names what is not there: {}", loaded.name, fmt::join(keys, ", ")),
              "no rank was started");
}

}  // namespace dstrain
