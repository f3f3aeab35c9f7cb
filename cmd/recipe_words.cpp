#include "cmd/recipe_words.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "engine/base/error.h"
#include "engine/base/input_file.h"
#include "engine/base/module.h"
#include "engine/base/output.h"
#include "engine/base/printable.h"
#include "engine/recipe/text.h"
#include "engine/recipe/variants.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

/// Anything but a folder, whose name may be that of a model; a variant of a recipe, too.
bool is_there(const fs::path& path) {
  const PathKind kind = path_kind(path);
  return kind == PathKind::file || kind == PathKind::other || find_variant(path);
}

/// The recipe of the tree that is called so; empty: none.
fs::path in_tree(const std::string& word) {
  const fs::path given = fs::path(word).lexically_normal();
  if (word.empty() || given.is_absolute()) return {};
  const fs::path folder = recipes_folder();
  if (*given.begin() == "recipes") {
    const fs::path file = folder / given.lexically_relative("recipes");
    return is_there(file) ? file : fs::path();
  }
  const std::string name = given.extension() == ".yaml" ? word : word + ".yaml";
  if (is_there(folder / name)) return folder / name;
  for (const fs::path& recipe : importing::recipes_below(folder)) {
    if (recipe.filename() == name) return recipe;
  }
  return {};
}

/// The file that is meant; the word itself where there is none, which reading it reports.
std::string found_recipe(const std::string& word) {
  const std::string found = recipe_called(word);
  return found.empty() ? word : found;
}

CLI::Validator finding(Words words) {
  return {[words](std::string& word) {
            word = found_recipe(word);
            if (words == Words::no) refuse_unknown_name(word);
            return std::string();
          },
          ""};
}

}  // namespace

CLI::Option* add_recipe(CLI::App& app, std::string& recipe, Words words, const char* names) {
  return app
      .add_option(names, recipe,
                  "Recipe: a YAML file, or the name of one that `dstrain recipe list` lists.")
      ->required()
      ->transform(finding(words));
}

CLI::Option* add_recipes(CLI::App& app, std::vector<std::string>& recipes, Words words) {
  return app
      .add_option("recipes", recipes,
                  "Recipes: YAML files, or names of those that `dstrain recipe list` lists.")
      ->required()
      ->transform(finding(words));
}

fs::path recipes_folder() {
  const fs::path program = fs::read_symlink("/proc/self/exe");
  const fs::path build = program.parent_path().parent_path();
  for (const fs::path& folder :
       {tree_of(program) / "share/dstrain/recipes", build.parent_path().parent_path() / "recipes",
        fs::path("recipes")}) {
    if (fs::is_directory(folder)) return folder;
  }
  throw Error(ErrorKind::usage, "no folder of recipes is near this dstrain", "name a recipe file");
}

std::string recipe_called(const std::string& word) {
  try {
    return is_there(word) ? word : in_tree(word).string();
  } catch (const Error&) {
    return "";
  }
}

importing::ShortForm read_words(const std::vector<std::string>& words) {
  importing::ShortForm form =
      importing::read_short_form(words, importing::recipes_below(recipes_folder()));
  print_error("{} with {} on {} ranks\n", form.recipe.string(), fmt::join(form.overrides, ", "),
              form.ranks);
  return form;
}

void refuse_unknown_name(const std::string& word) {
  if (word.empty() || word.find('/') != std::string::npos || word.ends_with(".yaml") ||
      path_exists(word, ErrorKind::usage))
    return;
  const std::vector<fs::path> all = importing::recipes_below(recipes_folder());
  const std::vector<fs::path> meant = importing::recipes_meant(word, all);
  std::vector<std::string> names;
  for (const fs::path& recipe : meant.empty() ? all : meant)
    names.push_back(recipe.stem().string());
  if (meant.empty()) {
    const std::string_view near = nearest(word, {names.begin(), names.end()});
    throw Error(
        ErrorKind::usage, fmt::format("there is no recipe '{}'", shown(word)),
        fmt::format("{}give a YAML file, or the name of one that `dstrain recipe list` lists",
                    near.empty() ? "" : fmt::format("did you mean {}? ", near)));
  }
  throw Error(ErrorKind::usage,
              fmt::format("'{}' is no recipe, but the beginning of some", shown(word)),
              fmt::format("name one: {}; or say the job in words: {} STRATEGY RANKS BATCH EPOCHS",
                          fmt::join(names, ", "), shown(word)));
}

}  // namespace dstrain
