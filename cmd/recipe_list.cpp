#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "cmd/command.h"
#include "cmd/recipe_words.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/output.h"
#include "engine/base/printable.h"
#include "engine/recipe/variants.h"

namespace dstrain {
namespace {

/// What its first line says: "# recipes/quickstart.yaml - a small Vision Transformer ...".
std::string first_words(const std::filesystem::path& recipe) {
  const auto variant = find_variant(recipe);
  const std::string text = read_file(variant ? variant->file : recipe);
  const std::string line = text.substr(0, text.find('\n'));
  constexpr std::string_view kDash = " - ";
  const std::size_t dash = line.find(kDash);
  return dash == std::string::npos ? std::string() : line.substr(dash + kDash.size());
}

int list_recipes(const std::string& word) {
  const std::filesystem::path folder = recipes_folder();
  std::vector<std::filesystem::path> recipes = importing::recipes_below(folder);
  if (!word.empty()) recipes = importing::recipes_meant(word, recipes);
  if (recipes.empty()) {
    throw Error(ErrorKind::usage,
                fmt::format("no recipe in {} is of '{}'", folder.string(), shown(word)),
                "dstrain recipe list lists all");
  }
  for (const std::filesystem::path& recipe : recipes)
    print_text("{:<36}  {}\n", recipe.stem().string(), first_words(recipe));
  return 0;
}

}  // namespace

Command add_recipe_list(CLI::App& root) {
  auto word = std::make_shared<std::string>();
  CLI::App* app = root.add_subcommand("list",
                                      "List the recipes that come with dstrain. Every command "
                                      "takes them by name, from any folder.\n"
                                      "Example: dstrain recipe list vit-base");
  app->add_option("model", *word,
                  "Only recipes of this model, of a family, or whose names begin so.");
  return {app, [word] { return list_recipes(*word); }};
}

}  // namespace dstrain
