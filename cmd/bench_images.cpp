#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "cmd/command.h"
#include "cmd/overrides.h"
#include "cmd/planned_model.h"
#include "engine/base/error.h"
#include "engine/base/json.h"
#include "engine/base/output.h"
#include "engine/data/image_rates.h"
#include "recipes/schema/datasets.h"
#include "recipes/schema/load.h"

namespace dstrain {
namespace {

struct ImageBenchOptions {
  std::string recipe;
  std::vector<std::string> overrides;
  std::vector<int> threads;
  double seconds = 3;
  bool json = false;
};

int bench_images(const ImageBenchOptions& options) {
  const LoadedRecipe loaded = load_recipe(options.recipe, options.overrides);
  const Recipe& recipe = loaded.recipe;
  if (!fits(dataset_row(recipe.data.name), Modality::images)) {
    throw Error(ErrorKind::usage, "this recipe's data are text, and this command times images",
                "use a recipe with image files");
  }
  std::vector<int> threads = options.threads;
  for (int count = 1;
       options.threads.empty() && count <= static_cast<int>(std::thread::hardware_concurrency());
       count *= 2)
    threads.push_back(count);
  const int size = recipe.model.image_size > 0 ? recipe.model.image_size
                                               : planned_model(recipe).model.image_size;
  const auto images = open_images(recipe.data, Split::train, size, recipe.run.seed);
  const auto rates = measure_image_rates(*images, threads, options.seconds, recipe.run.seed);
  if (options.json) {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const ImageRates& row : rates) {
      rows.push_back({{"threads", row.threads},
                      {"read", row.read},
                      {"decode", row.decode},
                      {"prepare", row.prepare},
                      {"bytes", row.bytes}});
    }
    print_text("{}\n", json_text(rows, 2));
    return 0;
  }
  print_text("{} samples for images of {} pixels, {:.1f} kB stored each; images per second:\n",
             images->size(), size, rates.front().bytes / 1000);
  print_text("{:>8} {:>10} {:>10} {:>10} {:>12}\n", "threads", "read", "+ decode", "+ resize",
             "per thread");
  for (const ImageRates& row : rates) {
    print_text("{:>8} {:>10.0f} {:>10.0f} {:>10.0f} {:>12.0f}\n", row.threads, row.read, row.decode,
               row.prepare, row.prepare / row.threads);
  }
  return 0;
}

}  // namespace

Command add_bench_images(CLI::App& root) {
  auto options = std::make_shared<ImageBenchOptions>();
  CLI::App* app = root.add_subcommand(
      "images",
      "How many of a recipe's training images a second are read, decoded and resized, by threads;\n"
      "with data.pack from the packed file. Each column has the ones before it inside.");
  app->footer(
      "Example: dstrain bench images recipes/vit/vit-base_food101_zero2.yaml --set data.pack=jpeg");
  app->add_option("recipe", options->recipe, "Recipe file (YAML).")->required();
  add_overrides(*app, options->overrides);
  app->add_option("--threads", options->threads,
                  "Numbers of threads. Default: 1, 2, 4 and so on up to the cores.")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024));
  app->add_option("--seconds", options->seconds, "For each figure. Default: 3.")
      ->check(CLI::Range(0.05, 600.0));
  app->add_flag("--json", options->json, "Print one JSON list instead of a table.");
  return {app, [options] { return bench_images(*options); }};
}

}  // namespace dstrain
