#pragma once

#include <string>
#include <vector>

namespace dstrain {

/// Which of the things that a recipe names on the Hub are to come.
enum class Bring {
  /// Names, and unless this is offline what known paths lack: models/bloom-560m, data/food-101.
  all_and_data,
  all,     ///< names alone
  config,  ///< of the named model config.json alone; nothing where it cannot be had
  nothing  ///< say what the cache lacks
};

/// Brings what the recipe names on the Hub into its cache, for those who read the recipe then:
/// load_recipe() puts the cache's paths in the place of names.
void bring_named(const std::string& recipe, const std::vector<std::string>& overrides, Bring bring);

/// For a rank that some launcher started, on a host of its own: brings what its host's cache lacks
/// and asks nothing about what is there. All ranks of a host may call it at once; one moves each
/// file, the others wait for it.
void bring_lacking(const std::string& recipe, const std::vector<std::string>& overrides,
                   bool speaks);

}  // namespace dstrain
