#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/import/short_form.h"

namespace dstrain {

/// Whether a command takes a job in words, too, whose first may be the beginning of a recipe's
/// name.
enum class Words { no, yes };

/// The recipe of a command: a file, or one that comes with dstrain by its path in the tree
/// ("recipes/quickstart.yaml") or its name ("quickstart"), wherever the command is run. A name that
/// none has is Error{usage}; with Words::yes the command calls refuse_unknown_name itself.
CLI::Option* add_recipe(CLI::App& app, std::string& recipe, Words words = Words::no,
                        const char* names = "recipe");
CLI::Option* add_recipes(CLI::App& app, std::vector<std::string>& recipes, Words words = Words::no);

/// The folder of an installed tree, of the tree that was built, or here. Error{usage} where none is near.
[[nodiscard]] std::filesystem::path recipes_folder();

/// The file of the recipe that `word` names as add_recipe() takes it; empty where there is none.
[[nodiscard]] std::string recipe_called(const std::string& word);

/// What `words` of a command mean (importing::read_short_form). Says on stderr what it sets.
/// Error{usage} for words that are not known.
[[nodiscard]] importing::ShortForm read_words(const std::vector<std::string>& words);

/// Error{usage} for a word that is neither a path nor the name of a recipe: those that begin so, or
/// the nearest.
void refuse_unknown_name(const std::string& word);

/// What the words of a job are, for help texts.
inline constexpr const char* kWordsHelp =
    "Instead of a recipe five words, MODEL STRATEGY RANKS BATCH EPOCHS, or six, MODEL STRATEGY "
    "NODES PER_NODE\nBATCH EPOCHS: a recipe of the tree with that strategy (ddp, zero1, zero2, "
    "zero3, zeropp, fsdp_stage2,\nfsdp_stage3), batch of a rank and length.";

}  // namespace dstrain
