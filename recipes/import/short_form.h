#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace dstrain::importing {

/// A job in five words: MODEL STRATEGY RANKS BATCH EPOCHS.
struct ShortForm {
  std::filesystem::path recipe;
  std::vector<std::string> overrides;  ///< "path.to.key=value"
  int ranks = 0;
};

/// Takes the recipe of `recipes` whose name begins with MODEL and fits STRATEGY and the data best:
/// the model of that very name before others, real data before random, the strategy's own recipe
/// before others. BATCH is of a rank. Error{usage} lists what is known, the nearest first.
[[nodiscard]] ShortForm read_short_form(const std::vector<std::string>& words,
                                        const std::vector<std::filesystem::path>& recipes);

/// All recipes (.yaml) below a folder, by name.
[[nodiscard]] std::vector<std::filesystem::path> recipes_below(const std::filesystem::path& folder);

}  // namespace dstrain::importing
