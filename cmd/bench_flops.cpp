#include <memory>
#include <string>
#include <vector>

#include "cmd/command.h"
#include "cmd/overrides.h"
#include "cmd/planned_model.h"
#include "engine/base/output.h"
#include "engine/program/flops_report.h"
#include "recipes/schema/load.h"

namespace dstrain {
namespace {

struct FlopsOptions {
  std::string recipe;
  std::vector<std::string> overrides;
  bool json = false;
};

}  // namespace

Command add_bench_flops(CLI::App& root) {
  auto options = std::make_shared<FlopsOptions>();
  CLI::App* app = root.add_subcommand(
      "flops",
      "Parameters, multiply-adds, FLOPs and bytes kept for backward of each block, for one\n"
      "micro-batch; from the sizes, without a device.");
  app->footer("Example: dstrain bench flops recipes/vit/vit-huge_random_ddp.yaml");
  app->add_option("recipe", options->recipe, "Recipe file (YAML).")->required();
  add_overrides(*app, options->overrides);
  app->add_flag("--json", options->json, "Print one JSON object instead of a table.");
  return {app, [options] {
            const LoadedRecipe loaded = load_recipe(options->recipe, options->overrides);
            const std::vector<FlopsRow> rows = flops_rows(planned_model(loaded.recipe).cost);
            const int samples = loaded.recipe.batch.micro;
            print_text(options->json ? flops_json(rows, samples) : flops_text(rows, samples));
            return 0;
          }};
}

}  // namespace dstrain
