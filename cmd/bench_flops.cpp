#include <memory>
#include <string>
#include <vector>

#include "cmd/command.h"
#include "cmd/number_option.h"
#include "cmd/overrides.h"
#include "cmd/planned_model.h"
#include "cmd/recipe_words.h"
#include "engine/base/output.h"
#include "engine/program/flops_report.h"
#include "engine/program/simulate.h"
#include "engine/recipe/load.h"
#include "engine/train/measure/block_times.h"

namespace dstrain {
namespace {

struct FlopsOptions {
  std::string recipe;
  std::vector<std::string> overrides;
  int depth = 1;
  bool measured = false;
  int warmup = 5;
  int steps = 20;
  bool json = false;
};

}  // namespace

Command add_bench_flops(CLI::App& root) {
  auto options = std::make_shared<FlopsOptions>();
  CLI::App* app = root.add_subcommand(
      "flops",
      "Parameters, multiply-adds, FLOPs and bytes kept for backward of each block, for one\n"
      "micro-batch; from the sizes, without a device, or with times measured on one.");
  app->footer(
      "Example: dstrain bench flops recipes/vit/vit-huge_random_ddp.yaml --depth 2 --measured");
  add_recipe(*app, options->recipe);
  add_overrides(*app, options->overrides);
  app->add_option("--depth", options->depth, "1: blocks; 2: their layers, too. Default: 1.")
      ->check(number_in(1, 2));
  auto* measured = app->add_flag("--measured", options->measured,
                                 "Time forward and backward of each block on this machine, with\n"
                                 "random data.");
  app->add_option("--warmup", options->warmup, "Steps before the timed ones. Default: 5.")
      ->check(number_in(1, 10000))
      ->needs(measured);
  app->add_option("--steps", options->steps, "Timed steps. Default: 20.")
      ->check(number_in(1, 10000))
      ->needs(measured);
  app->add_flag("--json", options->json, "Print one JSON object instead of a table.");
  return {app, [options] {
            const LoadedRecipe loaded = load_recipe(options->recipe, options->overrides);
            FlopsReport report{.samples = loaded.recipe.batch.micro, .layers = options->depth > 1};
            std::vector<BlockTime> times;
            if (options->measured) {
              const World world = single_world(choose_device(loaded.recipe.parallel.backend, 0));
              RankRecordFile record = RankRecordFile::anonymous();
              times = measure_blocks(loaded.recipe, world, options->warmup, options->steps, record);
              report.device = world.device.name;
              report.peak_flops = datasheet_flops(world.device.name);
            }
            report.rows = flops_rows(planned_model(loaded.recipe).cost, times);
            print_text(options->json ? flops_json(report) : flops_text(report));
            return 0;
          }};
}

}  // namespace dstrain
