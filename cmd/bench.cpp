#include "engine/train/measure/step_bench.h"

#include <memory>

#include "cmd/command.h"
#include "cmd/number_option.h"
#include "cmd/overrides.h"
#include "cmd/recipe_words.h"
#include "engine/base/output.h"
#include "engine/recipe/load.h"

namespace dstrain {
namespace {

struct BenchOptions {
  std::string recipe;
  std::vector<std::string> overrides;
  int warmup = 5;
  int steps = 20;
  int max = 30;
};

StepBench measure(const BenchOptions& options, bool kernels) {
  const LoadedRecipe loaded = load_recipe(options.recipe, options.overrides);
  RankRecordFile record = RankRecordFile::anonymous();
  return bench_step(loaded.recipe, single_world(choose_device(loaded.recipe.parallel.backend, 0)),
                    options.warmup, options.steps, kernels, record);
}

void add_options(CLI::App& app, BenchOptions& options) {
  add_recipe(app, options.recipe)
      ->description(
          "Recipe: a YAML file, or the name of one that `dstrain recipe list` lists; "
          "random data take the place of its own.");
  add_overrides(app, options.overrides);
  app.add_option("--warmup", options.warmup, "Steps before the timed ones. Default: 5.")
      ->check(number_in(1, 10000));
  app.add_option("--steps", options.steps, "Timed steps. Default: 20.")->check(number_in(2, 10000));
}

}  // namespace

Command add_bench_step(CLI::App& root) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* app = root.add_subcommand(
      "step", "Time the optimizer step of a recipe on one device, beside what its plan says.");
  app->footer("Example: dstrain bench step recipes/qwen/qwen2.5-3b_random.yaml");
  add_options(*app, *options);
  return {app, [options] {
            print_text(bench_report(measure(*options, false)));
            return 0;
          }};
}

Command add_bench_kernel(CLI::App& root) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* app = root.add_subcommand(
      "kernel", "Where the time of a step goes: every GPU kernel with its time, runs and share.");
  app->footer("Example: dstrain bench kernel recipes/vit/vit-base_random_ddp.yaml --most 20");
  add_options(*app, *options);
  app->add_option("--most", options->max, "Kernels to list. Default: 30.")
      ->check(number_in(1, 1000));
  return {app, [options] {
            const StepBench bench = measure(*options, true);
            print_text(bench_report(bench) + "\n" + kernel_report(bench, options->max));
            return 0;
          }};
}

}  // namespace dstrain
