#include "engine/recipe/hub_words.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/input_file.h"
#include "engine/hub/cache.h"
#include "engine/recipe/datasets.h"
#include "engine/recipe/diagnostics.h"
#include "engine/recipe/reader.h"

namespace dstrain {
namespace {

struct Key {
  const char* name;
  std::string& (*value)(Recipe&);
  hub::Use use;
};
constexpr Key kKeys[] = {
    {"model.weights", [](Recipe& r) -> std::string& { return r.model.weights; }, hub::Use::weights},
    {"data.path", [](Recipe& r) -> std::string& { return r.data.path; }, hub::Use::text_data},
    {"data.tokenizer", [](Recipe& r) -> std::string& { return r.data.tokenizer; },
     hub::Use::tokenizer},
    {"lora.weights", [](Recipe& r) -> std::string& { return r.lora.weights; }, hub::Use::adapter},
};

/// The name that a value is. Error{usage} for one that cannot be meant there.
std::optional<HubWord> word_of(Recipe& recipe, const Key& key) {
  const bool data = key.use == hub::Use::text_data;
  std::string value = key.value(recipe);
  const bool bare = hub::is_bare_name(value);
  if (bare) {
    // Pixels of the Hub are in forms that are not read, so a folder is meant.
    if (data && dataset_row(recipe.data.name).modality != Modality::text) return std::nullopt;
    if (path_exists(value, ErrorKind::usage)) return std::nullopt;
    value = fmt::format("hf://{}{}", data ? "datasets/" : "", value);
  }
  const auto name = hub::parse_hub_name(value);
  if (!name) return std::nullopt;
  if (name->dataset != data)
    throw Error(ErrorKind::usage, fmt::format("'{}' is {}", value, data ? "a model" : "a data set"),
                data ? "write hf://datasets/ORG/NAME" : "write hf://ORG/NAME");
  if (data && dataset_row(recipe.data.name).modality != Modality::text)
    throw Error(ErrorKind::usage,
                fmt::format("'{}': of the Hub's data sets text alone is read", value),
                "name a folder of images; recipes/guides/data-and-models.md says where they are");
  return HubWord{.key = key.name, .name = *name, .use = key.use, .bare = bare};
}

}  // namespace

std::vector<HubWord> hub_words_of(const Recipe& given) {
  Recipe recipe = given;
  std::vector<HubWord> words;
  for (const Key& key : kKeys)
    if (auto word = word_of(recipe, key)) words.push_back(*std::move(word));
  return words;
}

std::optional<LackingData> lacking_data_of(const Recipe& recipe) {
  const hub::Archive* archive = hub::find_archive(dataset_row(recipe.data.name).spelling);
  const std::filesystem::path path = recipe.data.path;
  if (archive == nullptr || path.filename() != archive->folder ||
      path_exists(path, ErrorKind::usage))
    return std::nullopt;
  return LackingData{.archive = archive, .parent = path.parent_path()};
}

std::map<std::string, std::string, std::less<>> take_cached(Recipe& recipe,
                                                            const YamlReader& reader,
                                                            Diagnostics& diagnostics) {
  std::map<std::string, std::string, std::less<>> taken;
  for (const Key& key : kKeys) try {
      const auto word = reader.usable(key.name) ? word_of(recipe, key) : std::nullopt;
      if (!word) continue;
      const auto path = hub::cached_path(word->name);
      if (!path) continue;
      hub::HubName exact = word->name;
      exact.revision = hub::CachedRepository(hub::hub_cache(), exact)
                           .known_commit(word->name.revision)
                           .value_or(word->name.revision);
      key.value(recipe) = path->string();
      taken[key.name] = exact.text();
    } catch (const Error& error) {
      diagnostics.error(reader.place(key.name), key.name, error.what(), error.hint());
    }
  return taken;
}

}  // namespace dstrain
