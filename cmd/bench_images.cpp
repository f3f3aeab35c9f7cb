#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cmd/command.h"
#include "cmd/number_option.h"
#include "cmd/overrides.h"
#include "cmd/planned_model.h"
#include "cmd/recipe_words.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/make_folder.h"
#include "engine/base/output.h"
#include "engine/bench/input_tables.h"
#include "engine/data/images/jpeg_units.h"
#include "engine/device/numa.h"
#include "engine/recipe/datasets.h"
#include "engine/recipe/load.h"
#include "engine/train/measure/input_rates.h"
#include "engine/train/session/world.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

/// Columns of the table are narrow.
constexpr std::size_t kImageColumns = 120;

struct ImageBenchOptions {
  std::string recipe;
  std::vector<std::string> overrides;
  std::vector<int> threads;
  double seconds = 3;
  double rate = 0;
  std::string output;
  bool json = false;
};

/// 1, 2, 4 and so on up to the cores, and all of them.
std::vector<int> usual_threads(int cores) {
  std::vector<int> threads;
  for (int count = 1; count < cores; count *= 2) threads.push_back(count);
  threads.push_back(cores);
  return threads;
}

int bench_images(const ImageBenchOptions& options) {
  const LoadedRecipe loaded = load_recipe(options.recipe, options.overrides);
  const Recipe& recipe = loaded.recipe;
  if (is_language_model(recipe.model)) {
    throw Error(ErrorKind::usage, "this recipe's data are text, and this command times images",
                "use a recipe with image files");
  }
  const DeviceFacts device = choose_device(recipe.parallel.backend, 0);
  const int cores = std::max(1, static_cast<int>(cores_near(device.pci_bus).size()));
  std::vector<int> threads = options.threads.empty() ? usual_threads(cores) : options.threads;
  std::ranges::sort(threads);
  const int size = recipe.model.image_size > 0 ? recipe.model.image_size
                                               : planned_model(recipe).model.image_size;
  const std::shared_ptr<ImageDataset> images =
      open_images(recipe.data, Split::train, size, recipe.run.seed);
  DataConfig data = recipe.data;
  data.workers = threads.back();
  if (const int lanes = jpeg_lanes(data); lanes > 0)
    images->decode_by(JpegUnits::open(device.device, lanes));
  const bench::InputBench bench = {
      .recipe = fs::path(options.recipe).stem().string(),
      .data = recipe.data,
      .device = device.name,
      .images = images->size() * images->frames(),
      .image_size = size,
      .cores = cores,
      .model_rate = options.rate,
      .rates = measure_input_rates(recipe, images, size, device, threads, options.seconds)};
  const std::string json = json_text(bench::input_json(bench), 2) + "\n";
  const report::Document document = bench::input_document(bench);
  print_text(options.json ? json : report::document_text(document, kImageColumns));
  if (options.output.empty()) return 0;
  const fs::path folder = fs::absolute(options.output).lexically_normal();
  make_folder(folder, "name another one with --output");
  write_file_atomically(folder / "images.md", report::document_markdown(document));
  write_file_atomically(folder / "images.csv", bench::input_csv(bench));
  write_file_atomically(folder / "images.json", json);
  if (!options.json)
    print_text("\ntable: {}, with images.csv and images.json beside it\n",
               (folder / "images.md").string());
  return 0;
}

}  // namespace

Command add_bench_images(CLI::App& root) {
  auto options = std::make_shared<ImageBenchOptions>();
  CLI::App* app = root.add_subcommand(
      "images",
      "How many of a recipe's training images a second get to the device, by threads of the "
      "loader;\n"
      "with data.pack from the packed file. Of one image: bytes, and the time of read, decode,\n"
      "resize and copy. Says what limits, and with --rate how many cores the model needs.");
  app->footer(
      "Example: dstrain bench images recipes/vit/vit-base_food101_zero2.yaml --set data.pack=jpeg\n"
      "         --rate 2600");
  add_recipe(*app, options->recipe);
  add_overrides(*app, options->overrides);
  app->add_option("--threads", options->threads,
                  "Numbers of threads. Default: 1, 2, 4 and so on up to the cores near the device.")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(number_in(1, 1024));
  app->add_option(
         "--seconds", options->seconds,
         "For the host's batches, the device's, and the stages of an image, each. Default: 3.")
      ->check(number_in(0.05, 600.0));
  app->add_option("--rate", options->rate, "Images per second that the model trains.")
      ->check(number_in(0.001, 1e9));
  app->add_option("-o,--output", options->output,
                  "Folder that gets images.md, images.csv and images.json.");
  app->add_flag("--json", options->json, "Print one JSON object instead of a table.");
  return {app, [options] { return bench_images(*options); }};
}

}  // namespace dstrain
