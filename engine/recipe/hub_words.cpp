#include "engine/recipe/hub_words.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/input_file.h"
#include "engine/hub/cache.h"
#include "engine/hub/known_folders.h"
#include "engine/recipe/datasets.h"
#include "engine/recipe/diagnostics.h"
#include "engine/recipe/reader.h"

namespace dstrain {
namespace {

struct Key {
  std::string name;
  std::string* value;
  hub::Use use;
  DatasetName set;  ///< of a path of data
};
std::vector<Key> keys_of(Recipe& r) {
  std::vector<Key> keys = {
      {"model.weights", &r.model.weights, hub::Use::weights, r.data.name},
      {"data.path", &r.data.path, hub::Use::data, r.data.name},
      {"data.tokenizer", &r.data.tokenizer, hub::Use::tokenizer, r.data.name},
      {"lora.weights", &r.lora.weights, hub::Use::adapter, r.data.name},
  };
  for (std::size_t i = 0; i < r.data.mixture.size(); ++i)
    keys.push_back({member_path(i, "data.path"), &r.data.mixture[i].path, hub::Use::data,
                    r.data.mixture[i].name});
  return keys;
}

/// The name of the known folder that a value means and that is not there.
std::optional<HubWord> word_of_folder(const Key& key, const std::string& value) {
  const std::filesystem::path path = value;
  const bool data = key.use == hub::Use::data;
  for (const hub::KnownFolder& one : hub::known_folders()) {
    if (path.filename() != one.name || data == one.data.empty()) continue;
    if (data ? dataset_row(key.set).spelling != one.data
             : path.parent_path().filename() != "models")
      continue;
    if (path_exists(path, ErrorKind::usage)) return std::nullopt;
    return HubWord{.key = key.name,
                   .name = {.dataset = data, .id = std::string(one.id), .revision = {}, .file = {}},
                   .use = key.use,
                   .folder = value};
  }
  return std::nullopt;
}

/// The name that a value is. Error{usage} for one that cannot be meant there.
std::optional<HubWord> word_of(const Key& key) {
  const bool data = key.use == hub::Use::data;
  std::string value = *key.value;
  if (auto known = word_of_folder(key, value)) return known;
  // In the cache of the host that launched or trained before.
  if (auto name = hub::name_of_snapshot(value)) {
    if (path_exists(value, ErrorKind::usage)) return std::nullopt;
    return HubWord{.key = key.name, .name = *std::move(name), .use = key.use};
  }
  const bool bare = hub::is_bare_name(value);
  if (bare) {
    if (data && !may_be_of_hub(dataset_row(key.set))) return std::nullopt;  // a folder
    if (path_exists(value, ErrorKind::usage)) return std::nullopt;
    value = fmt::format("hf://{}{}", data ? "datasets/" : "", value);
  }
  const auto name = hub::parse_hub_name(value);
  if (!name) return std::nullopt;
  if (name->dataset != data)
    throw Error(ErrorKind::usage, fmt::format("'{}' is {}", value, data ? "a model" : "a data set"),
                data ? "write hf://datasets/ORG/NAME" : "write hf://ORG/NAME");
  if (data && !may_be_of_hub(dataset_row(key.set)))
    throw Error(ErrorKind::usage,
                fmt::format("'{}': data.name {} is read from no data set of the Hub", value,
                            dataset_row(key.set).spelling),
                "name its folder, or use data.name: images for parquet files of images");
  return HubWord{.key = key.name, .name = *name, .use = key.use, .bare = bare};
}

}  // namespace

std::vector<HubWord> hub_words_of(const Recipe& given) {
  Recipe recipe = given;
  std::vector<HubWord> words;
  for (const Key& key : keys_of(recipe))
    if (auto word = word_of(key)) words.push_back(*std::move(word));
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
  for (const Key& key : keys_of(recipe)) try {
      const auto word = reader.usable(key.name) ? word_of(key) : std::nullopt;
      if (!word) continue;
      const auto path = hub::cached_path(word->name);
      if (!path) continue;
      hub::HubName exact = word->name;
      exact.revision = hub::CachedRepository(hub::hub_cache(), exact)
                           .known_commit(word->name.revision)
                           .value_or(word->name.revision);
      *key.value = path->string();
      taken[key.name] = exact.text();
    } catch (const Error& error) {
      diagnostics.error(reader.place(key.name), key.name, error.what(), error.hint());
    }
  return taken;
}

}  // namespace dstrain
