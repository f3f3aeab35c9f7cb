#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cmd/command.h"
#include "cmd/hub_names.h"
#include "cmd/overrides.h"
#include "cmd/planned_model.h"
#include "cmd/preparation_progress.h"
#include "cmd/recipe_words.h"
#include "cmd/text_sets.h"
#include "engine/base/error.h"
#include "engine/base/json.h"
#include "engine/base/output.h"
#include "engine/base/units.h"
#include "engine/data/mixed_sets.h"
#include "engine/data/text/selection.h"
#include "engine/data/text_dataset.h"
#include "engine/recipe/datasets.h"
#include "engine/recipe/load.h"

namespace dstrain {
namespace {

using text::with_commas;

struct PrepareOptions {
  std::string recipe;
  std::vector<std::string> overrides;
  bool json = false;
};

void print(const std::string& split, const TextStatistics& s) {
  const auto percent = [](std::int64_t part, std::int64_t whole) {
    return 100.0 * static_cast<double>(part) / static_cast<double>(whole);
  };
  print_text("{}\n", split);
  print_text("  samples          {}, {} records left out\n", with_commas(s.samples),
             with_commas(s.left_out));
  print_text("  tokens           {}, {:.1f} % of them predicted\n", with_commas(s.tokens),
             percent(s.targets, s.tokens));
  print_text("  length           mean {:.1f}, median {}, 95 % up to {}, longest {}\n", s.mean,
             s.p50, s.p95, s.longest);
  print_text("  cut to {:<9} {} ({:.2f} %)\n", s.sequence, with_commas(s.cut),
             percent(s.cut, s.samples));
  if (s.packed_rows == 0) {
    print_text("  rows             one of each pair, {:.1f} % padding\n", 100 * s.padding_share());
    return;
  }
  print_text("  without packing  {} rows, {:.1f} % padding\n", with_commas(s.samples),
             100 * s.padding_share());
  print_text("  with packing     {} rows, {:.1f} % full\n", with_commas(s.packed_rows),
             100 * s.packed_share());
}

nlohmann::ordered_json to_json(const TextStatistics& s) {
  return {{"records", s.records},
          {"samples", s.samples},
          {"left_out", s.left_out},
          {"cut", s.cut},
          {"tokens", s.tokens},
          {"targets", s.targets},
          {"mean", s.mean},
          {"p50", s.p50},
          {"p95", s.p95},
          {"longest", s.longest},
          {"sequence", s.sequence},
          {"padding_share", s.padding_share()},
          {"packed_rows", s.packed_rows},
          {"packed_share", s.packed_share()}};
}

/// What the model takes; a size that only its name says is looked up there.
int input_size(const Recipe& recipe) {
  if (recipe.model.image_size > 0) return recipe.model.image_size;
  return planned_model(recipe).model.image_size;
}

int prepare_images(const Recipe& recipe, const PrepareOptions& options,
                   PreparationProgress& terminal) {
  const int size = input_size(recipe);
  nlohmann::ordered_json json;
  for (const Split split : {Split::train, Split::test}) {
    const char* name = split == Split::train ? "train" : "test";
    if (split == Split::test && recipe.run.evaluate.is_never()) continue;
    const auto images = open_images(recipe.data, split, size, recipe.run.seed, &terminal);
    if (options.json) {
      json[name] = {{"samples", images->size()}, {"classes", images->classes()}};
    } else {
      print_text("{}\n  samples          {}\n  classes          {}\n", name,
                 with_commas(images->size()), images->classes());
    }
  }
  if (options.json) print_text("{}\n", json_text(json, 2));
  return 0;
}

int prepare(const PrepareOptions& options) {
  bring_named(options.recipe, options.overrides, Bring::all_and_data);
  const LoadedRecipe loaded = load_recipe(options.recipe, options.overrides);
  for (const Diagnostic& warning : loaded.warnings) {
    print_error(format(warning) + "\n");
  }
  const Recipe& recipe = loaded.recipe;
  PreparationProgress terminal;
  const bool packed = recipe.data.pack != Pack::none && any_reads(recipe.data, "data.pack");
  if (packed || always_packed(recipe.data)) return prepare_images(recipe, options, terminal);
  if (!all_text(recipe.data)) {
    throw Error(ErrorKind::usage,
                "this recipe's data needs no preparation: it is not text of files, and no images "
                "are packed",
                "text is tokenised ahead of a run, such as data.name: jsonl, and images are packed "
                "that are in parquet files, or with data.pack: jpeg or pixels");
  }
  nlohmann::ordered_json json;
  for (const Split split : {Split::train, Split::test}) {
    const char* name = split == Split::train ? "train" : "test";
    if (split == Split::test && recipe.run.evaluate.is_never()) continue;
    const std::vector<std::string> members = member_names(recipe.data);
    const auto all =
        each_set(recipe.data, &terminal, [&](const DataConfig& one, ProgressSink* progress) {
          return text_statistics(one, split, recipe.model.weights, recipe.run.seed, progress);
        });
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (!options.json) {
        print(members.empty() ? name : fmt::format("{} of {}", name, members[i]), all[i]);
      } else if (members.empty()) {
        json[name] = to_json(all[i]);
      } else {
        json[name][members[i]] = to_json(all[i]);
      }
    }
  }
  if (options.json) print_text("{}\n", json_text(json, 2));
  return 0;
}

}  // namespace

Command add_data_prepare(CLI::App& root) {
  auto options = std::make_shared<PrepareOptions>();
  CLI::App* app = root.add_subcommand(
      "prepare",
      "Tokenise a recipe's text ahead of a run and count it: samples, lengths, what is cut or left "
      "out, what packing saves. With data.pack, pack a recipe's images into one file. A run that "
      "finds its data prepared starts at once.\n"
      "Example: dstrain data prepare recipes/bloom/bloom-560m_squad.yaml");
  add_recipe(*app, options->recipe, Words::no, "recipe,--recipe");
  add_overrides(*app, options->overrides);
  app->add_flag("--json", options->json, "Print one JSON object instead of text.");
  return {app, [options] { return prepare(*options); }};
}

}  // namespace dstrain
