#include "engine/draft/model_facts.h"

#include <fmt/format.h>

#include <vector>

#include "engine/base/error.h"
#include "engine/base/input_file.h"
#include "engine/base/json.h"
#include "engine/base/model_folder.h"
#include "engine/base/printable.h"
#include "engine/recipe/config_file.h"
#include "engine/recipe/text.h"
#include "engine/weights/weight_folder.h"

namespace dstrain::draft {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMaxPositions = 1 << 30;
constexpr const char* kModelWords =
    "name a folder with config.json and weights, ORG/NAME of the Hub, or a published size such as "
    "qwen2.5-0.5b or vit-base";

/// Its repository of the Hub; that of timm or torchvision is a name of the architecture alone.
std::optional<hub::HubName> repository_of(const PublishedModel& model) {
  for (const std::string_view alias : model.aliases) {
    if (alias.find('/') == std::string_view::npos || alias.starts_with("timm/") ||
        alias.starts_with("torchvision/"))
      continue;
    return hub::HubName{.dataset = false, .id = std::string(alias), .revision = {}, .file = {}};
  }
  return std::nullopt;
}

[[noreturn]] void fail_unknown(const std::string& word) {
  std::vector<std::string_view> names;
  for (const ModelFamily& family : model_families())
    for (const PublishedModel& model : family.published) names.push_back(model.name);
  const std::string_view near = nearest(word, names);
  throw Error(ErrorKind::usage,
              fmt::format("'{}' is no model: there is no such folder, and no published size is "
                          "called so",
                          shown(word)),
              near.empty() ? kModelWords : fmt::format("did you mean {}? {}", near, kModelWords));
}

/// A folder of an adapter alone, of a run or a checkpoint, or of anything else.
[[noreturn]] void fail_no_model(const fs::path& folder) {
  const fs::path adapter = folder / "adapter_config.json";
  if (path_exists(adapter)) {
    const nlohmann::json json = read_json_object(adapter);
    const auto base = json.find("base_model_name_or_path");
    throw Error(ErrorKind::usage, fmt::format("{} is an adapter, not a model", shown_path(folder)),
                fmt::format("name the model that it was made for{}, and set lora.weights to this "
                            "folder in the recipe",
                            base != json.end() && base->is_string()
                                ? fmt::format(", {}", shown(base->get<std::string>()))
                                : ""));
  }
  const std::string hint = hint_for_model_folder(folder);
  throw Error(ErrorKind::data,
              fmt::format("{} has no config.json: it is no model", shown_path(folder)),
              hint.empty() ? kModelWords : hint);
}

/// Family and, where it is known by its name, that name.
void read_config(ModelFacts& facts, const fs::path& path) {
  ConfigFile file(path);
  const std::string type = file.text("model_type", "");
  if (type.empty() && file.has("architecture")) {
    const TimmModel timm = timm_model_in(file);
    if (timm.published != nullptr) facts.family = family_of(timm.published->name);
  } else if (const ModelFamily* family = family_of_type(type); family && !family->by_name) {
    facts.family = family;
  }
  if (facts.family == nullptr)
    throw Error(ErrorKind::data,
                fmt::format("{}: model_type is '{}'", shown_path(path), shown(type)),
                fmt::format("dstrain trains {}", family_names()));
  if (facts.family->positions != nullptr)
    facts.positions = file.size(facts.family->positions, kMaxPositions, 0);
}

}  // namespace

ModelWord read_model_word(const std::string& word) {
  ModelWord model{.word = word};
  const PathKind kind = path_kind(word, ErrorKind::usage);
  if (kind == PathKind::folder) {
    model.folder = word;
    return model;
  }
  if (kind != PathKind::nothing)
    throw Error(ErrorKind::usage,
                fmt::format("{} is a file, not the folder of a model", shown_path(word)),
                kModelWords);
  model.published = published_model(word);
  if (model.published != nullptr) {
    model.hub = repository_of(*model.published);
    return model;
  }
  const bool bare = hub::is_bare_name(word);
  model.hub = hub::parse_hub_name(bare ? "hf://" + word : word);
  if (!model.hub) fail_unknown(word);
  if (model.hub->dataset)
    throw Error(ErrorKind::usage, fmt::format("'{}' is a data set, not a model", shown(word)),
                "the model comes first, then the data");
  model.published = published_model(model.hub->id);
  return model;
}

ModelFacts look_at_model(const ModelWord& word, const fs::path& files) {
  ModelFacts facts;
  facts.files = files;
  if (!word.folder.empty()) {
    facts.called = fs::absolute(word.folder / "").lexically_normal().parent_path().filename();
    facts.weights = word.folder.string();
    if (!path_exists(files / "config.json")) fail_no_model(files);
    read_config(facts, files / "config.json");
    (void)WeightFolder(files);
    return facts;
  }
  if (word.published != nullptr) {
    facts.name = word.published->name;
    facts.called = facts.name;
    facts.family = family_of(facts.name);
    if (facts.family->joins && facts.name == "ensemble")
      throw Error(ErrorKind::usage, "an ensemble has members, which a recipe names",
                  "recipes/cnn/ensemble_food101.yaml is one");
  }
  if (word.hub) {
    facts.weights = word.hub->text();
    facts.called = word.hub->id.substr(word.hub->id.find('/') + 1);
  }
  const bool has_config = !files.empty() && path_exists(files / "config.json");
  if (has_config) {
    read_config(facts, files / "config.json");
  } else if (facts.family == nullptr) {
    throw Error(
        ErrorKind::hosts,
        fmt::format("what {} is stands in its config.json, which is not here", word.hub->text()),
        fmt::format("`dstrain fetch {}` brings it", word.hub->text()));
  }
  return facts;
}

}  // namespace dstrain::draft
