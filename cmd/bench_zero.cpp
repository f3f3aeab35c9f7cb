#include <memory>
#include <string>
#include <vector>

#include "cmd/bench_preset.h"
#include "cmd/number_option.h"
#include "cmd/recipe_words.h"
#include "engine/base/error.h"
#include "engine/bench/zero_pages.h"
#include "engine/bench/zero_plan.h"

namespace dstrain {
namespace {

struct BenchZeroOptions : bench::ZeroOptions {
  std::vector<std::string> places = {"none", "optimizer"};
  std::string memory = "true";
};

/// What compares ZeRO stages and offload.
BenchPreset zero_preset(const BenchZeroOptions& options) {
  bench::ZeroOptions zero = options;
  zero.offloads.clear();
  for (const std::string& name : options.places) zero.offloads.push_back(bench::zero_offload(name));
  zero.pinned.clear();
  if (options.memory != "false") zero.pinned.push_back(true);
  if (options.memory != "true") zero.pinned.push_back(false);
  if (zero.ranks.empty() && zero.scaling.empty()) {
    throw Error(ErrorKind::usage, "neither --ranks nor --scaling says on how many ranks to train",
                "--ranks 2 for the stages and offload, --scaling 2,4,6,8 for weak scaling");
  }
  if (zero.samples_per_rank > 0 && zero.scaling.empty()) {
    throw Error(ErrorKind::usage,
                "--samples-per-rank is for weak scaling, and --scaling is missing",
                "add --scaling 2,4,6,8, or set data.subset (data.samples) for all cells");
  }
  require_once(zero.stages, "--stages");
  require_once(zero.offloads, "--offload");
  require_once(zero.scaling, "--scaling");
  return {bench::zero_plan(zero), bench::zero_pages};
}

}  // namespace

Command add_bench_zero(CLI::App& root) {
  auto options = std::make_shared<BenchZeroOptions>();
  CLI::App* app = root.add_subcommand(
      "zero",
      "Train recipes under every ZeRO stage with and without offload; memory, time and losses.");
  app->footer(
      "Each cell of the tables is a run of `dstrain launch` of the recipe's own length (--set "
      "changes it), all else equal.\n"
      "Cells that have ended are kept: the same command goes on, and one with more stages or ranks "
      "adds to them.\n"
      "Cells that need more GPUs than there are or more memory by plan are not started and say "
      "so.\n"
      "Writes zero.md, zero.csv (a row for each cell), zero_memory.csv (CPU memory over time) and "
      "zero.json.\n"
      "Example: dstrain bench zero recipes/bloom/bloom-560m_squad.yaml --ranks 2 --offload "
      "none,optimizer --pinned both");
  add_recipes(*app, options->recipes);
  add_ranks(*app, "--ranks", options->ranks,
            "Numbers of ranks of the stages. Default: none, if --scaling is there.");
  add_list(*app, "--stages", options->stages,
           "ZeRO stages, 0 to 3. The first is that of weak scaling, and of one rank, which "
           "divides nothing.\n"
           "Default: 0,1,2,3.")
      ->check(number_in(0, 3));
  add_list(*app, "--offload", options->places,
           "What rests on the host: none, optimizer, optimizer+parameters (stage 3 or one "
           "rank). Default: none,optimizer.");
  app->add_option("--pinned", options->memory,
                  "Whether that host memory is page-locked: true, false, both. Default: true.")
      ->check(CLI::IsMember({"true", "false", "both"}));
  add_ranks(*app, "--scaling", options->scaling,
            "Numbers of ranks of weak scaling: batch.global, which is for the first of them, "
            "grows with it.");
  app->add_option("--samples-per-rank", options->samples_per_rank,
                  "Training samples of weak scaling, times the ranks. Default: the recipe's.")
      ->check(number_in(1, 1 << 30));
  add_bench_options(*app, *options, "bench-zero");
  return {app, [options] { return run_bench(*options, [&] { return zero_preset(*options); }); }};
}

}  // namespace dstrain
