#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/hub/archives.h"
#include "engine/hub/repository.h"
#include "engine/recipe/recipe.h"

namespace dstrain {

class Diagnostics;
class YamlReader;

/// A key whose value is a name of the Hub, where a path may stand, too.
struct HubWord {
  std::string key;  ///< model.weights, data.path (of a mixture each member's), data.tokenizer or
                    ///< lora.weights
  hub::HubName name;
  hub::Use use;
  bool bare = false;        ///< ORG/NAME, which may be meant as a path of other hosts
  std::string folder = {};  ///< a known one that is not there, in whose place the name stands
};

/// A data set of images whose archive has a known address, where data.path names the folder that it
/// unpacks to and no such folder is there.
struct LackingData {
  const hub::Archive* archive;
  std::filesystem::path parent;  ///< of the folder
};

/// What a recipe names that can be fetched.
struct NamedThings {
  /// hf://..., ORG/NAME where no such path is there, and known folders that are not there.
  std::vector<HubWord> words;
  std::optional<LackingData> data;  ///< where it was asked for
};
/// Reads the recipe's values alone, so that they can be fetched before anything else looks at it; a
/// recipe with mistakes names nothing. Error{usage} where `with_data` and data.path cannot be
/// looked at.
[[nodiscard]] NamedThings named_things(const std::filesystem::path& file,
                                       const std::vector<std::string>& overrides, bool with_data);

/// Puts the paths that the cache has in the place of names; a name that it lacks stays. Asks
/// nobody. Reports names that are none. Returns the name, with its commit, by the key.
[[nodiscard]] std::map<std::string, std::string, std::less<>> take_cached(Recipe& recipe,
                                                                          const YamlReader& reader,
                                                                          Diagnostics& diagnostics);

/// The words of values that are read already. Error{usage} for a name that is none.
[[nodiscard]] std::vector<HubWord> hub_words_of(const Recipe& recipe);
[[nodiscard]] std::optional<LackingData> lacking_data_of(const Recipe& recipe);

}  // namespace dstrain
