#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cmd/command.h"
#include "cmd/hub_names.h"
#include "cmd/number_option.h"
#include "cmd/overrides.h"
#include "cmd/preparation_progress.h"
#include "cmd/recipe_words.h"
#include "cmd/text_sets.h"
#include "engine/base/error.h"
#include "engine/base/json.h"
#include "engine/base/marked_text.h"
#include "engine/base/output.h"
#include "engine/data/text_dataset.h"
#include "engine/recipe/datasets.h"
#include "engine/recipe/load.h"

namespace dstrain {
namespace {

struct ShowOptions {
  std::string recipe;
  std::vector<std::string> overrides;
  std::string split = "train";
  int count = 3;
  bool json = false;
};

void print(const ShownSample& sample) {
  print_text("--- {}: {} tokens, {} of them trained{}\n", sample.record, sample.tokens.size(),
             std::ranges::count(sample.trained, 1),
             sample.cut > 0 ? fmt::format(", {} more cut off", sample.cut) : "");
  for (const ShownSample::Piece& piece : sample.pieces) {
    if (piece.trained)
      print_marked_text(piece.text);
    else
      print_text(piece.text);
  }
  print_text("\n");
}

int show(const ShowOptions& options) {
  bring_named(options.recipe, options.overrides, Bring::all_and_data);
  const LoadedRecipe loaded = load_recipe(options.recipe, options.overrides);
  for (const Diagnostic& warning : loaded.warnings) print_error("{}\n", format(warning));
  const Recipe& recipe = loaded.recipe;
  if (!all_text(recipe.data))
    throw Error(ErrorKind::usage, "this recipe's data is no text of files",
                "samples of squad, metamathqa, jsonl and chat are shown");
  const Split split = options.split == "test" ? Split::test : Split::train;
  PreparationProgress progress;
  const auto samples =
      show_samples(recipe.data, split, recipe.model.weights, options.count, &progress);
  for (const ShownSample& sample : samples) {
    if (options.json)
      print_text("{}\n", json_text(nlohmann::ordered_json{{"record", sample.record},
                                                          {"tokens", sample.tokens},
                                                          {"trained", sample.trained}}));
    else
      print(sample);
  }
  return 0;
}

}  // namespace

Command add_data_show(CLI::App& root) {
  auto options = std::make_shared<ShowOptions>();
  CLI::App* app = root.add_subcommand(
      "show",
      "Print samples of a recipe's text as training sees them: special tokens, cuts, and what is "
      "trained (data.loss), in green on a terminal, else in [[ ]].\n"
      "Example: dstrain data show recipes/own/chat.yaml -n 3");
  add_recipe(*app, options->recipe, Words::no, "recipe,--recipe");
  add_overrides(*app, options->overrides);
  app->add_option("--split", options->split, "train or test. Default: train.")
      ->check(CLI::IsMember({"train", "test"}));
  app->add_option("-n,--samples", options->count, "How many, from the first. Default: 3.")
      ->check(number_in(1, 1000));
  app->add_flag("--json", options->json, "Print ids and marks, one JSON object a line.");
  return {app, [options] { return show(*options); }};
}

}  // namespace dstrain
