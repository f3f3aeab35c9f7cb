#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace dstrain::importing {

/// A job in five words, MODEL STRATEGY RANKS BATCH EPOCHS, or in six, MODEL STRATEGY NODES PER_NODE
/// BATCH EPOCHS.
struct ShortForm {
  std::filesystem::path recipe;
  std::vector<std::string> overrides;  ///< "path.to.key=value"
  int ranks = 0;
  int nodes = 0;  ///< 0: five words, which leave nodes open
  int per_node = 0;
};

/// Whether words of a command are such a job, right or wrong, and no list of recipes.
[[nodiscard]] bool is_short_form(const std::vector<std::string>& words);

/// MODEL is a recipe file, or a model of `recipes`, of whose recipes the one is taken that fits
/// best: real data before random, the strategy's own before others. It is a model's name, whatever
/// its case, another name of it, its family or a beginning of its name; Error{usage} with the
/// candidates where that means several models, with what is known where it means none. BATCH is of
/// a rank.
[[nodiscard]] ShortForm read_short_form(const std::vector<std::string>& words,
                                        const std::vector<std::filesystem::path>& recipes);

/// Those of `recipes` that MODEL can mean, of one model or of several.
[[nodiscard]] std::vector<std::filesystem::path> recipes_meant(
    const std::string& word, const std::vector<std::filesystem::path>& recipes);

/// All recipes (.yaml) below a folder, by name: one with variants by theirs, as files that need not
/// be there (variants.h).
[[nodiscard]] std::vector<std::filesystem::path> recipes_below(const std::filesystem::path& folder);

}  // namespace dstrain::importing
