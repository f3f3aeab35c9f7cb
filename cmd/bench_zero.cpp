#include <deque>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cmd/bench_part.h"
#include "cmd/command.h"
#include "cmd/number_option.h"
#include "cmd/overrides.h"
#include "cmd/recipe_words.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/bench/zero_files.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;
using bench::BenchPlan;
using bench::ZeroCell;

struct BenchZeroOptions {
  bench::ZeroOptions zero;
  std::vector<std::string> offloads = {"none", "optimizer"};
  std::string pinned = "true";
  std::string output = "bench-zero";
  bool retry = false;
};

bench::ZeroOptions checked(const BenchZeroOptions& options) {
  bench::ZeroOptions zero = options.zero;
  zero.offloads.clear();
  for (const std::string& name : options.offloads)
    zero.offloads.push_back(bench::zero_offload(name));
  zero.pinned = options.pinned == "both"   ? std::vector<bool>{true, false}
                : options.pinned == "true" ? std::vector<bool>{true}
                                           : std::vector<bool>{false};
  if (zero.ranks.empty() && zero.scaling.empty()) {
    throw Error(ErrorKind::usage, "neither --ranks nor --scaling says on how many ranks to train",
                "--ranks 2 for the stages and offload, --scaling 2,4,6,8 for weak scaling");
  }
  if (zero.samples_per_rank > 0 && zero.scaling.empty()) {
    throw Error(ErrorKind::usage,
                "--samples-per-rank is for weak scaling, and --scaling is missing",
                "add --scaling 2,4,6,8, or set data.subset (data.samples) for all cells");
  }
  require_once(zero.recipes, "the list of recipes");
  require_once(zero.ranks, "--ranks");
  require_once(zero.stages, "--stages");
  require_once(zero.offloads, "--offload");
  require_once(zero.scaling, "--scaling");
  return zero;
}

bool is_weak(const BenchPlan& plan) { return plan.scaling == bench::Scaling::weak; }

/// Adds the cells of a part, and the folders of those that ran.
void collect(BenchPart& part, const std::vector<bench::ZeroWay>& ways, std::vector<ZeroCell>& cells,
             std::vector<fs::path>& runs) {
  std::vector<bench::CaseResult> results = bench::bench_results(part.plan(), part.log());
  for (std::size_t i = 0; i < results.size(); ++i) {
    bench::CaseResult& result = results[i];
    if (result.runs == 0)
      bench::add_planned(result, part.plan_of(i, result));
    else
      runs.push_back(part.first_run(i));
    const bench::ZeroWay way = ways[result.which.variant];
    cells.push_back({.result = std::move(result), .way = way, .scaling = is_weak(part.plan())});
  }
}

int bench_zero(const BenchZeroOptions& options) {
  auto interrupts = std::make_unique<BenchInterrupts>();
  const bench::ZeroOptions zero = checked(options);
  const fs::path folder = fs::absolute(options.output).lexically_normal();
  std::vector<BenchPlan> plans;
  if (!zero.ranks.empty()) plans.push_back(bench::zero_plan(zero));
  if (!zero.scaling.empty()) plans.push_back(bench::zero_scaling_plan(zero));
  std::deque<BenchPart> parts;
  bool stopped = false;
  for (const BenchPlan& plan : plans) {
    parts.emplace_back(plan, folder / (is_weak(plan) ? "scaling" : "stages"), options.retry);
    stopped = stopped || !parts.back().run_all(*interrupts);
  }
  interrupts.reset();
  std::vector<ZeroCell> cells;
  std::vector<fs::path> runs;
  // Weak scaling has one way: the first, without offload.
  const std::vector<bench::ZeroWay> weak = {{.stage = zero.stages.front()}};
  for (BenchPart& part : parts)
    collect(part, is_weak(part.plan()) ? weak : bench::zero_ways(zero), cells, runs);
  const bench::BenchTables tables = bench::zero_tables(cells);
  nlohmann::ordered_json json = bench::zero_json(tables, cells);
  json["plans"] = nlohmann::ordered_json::array();
  for (const BenchPlan& plan : plans) json["plans"].push_back(bench::plan_json(plan));
  write_file_atomically(folder / "zero_memory.csv", bench::memory_series_csv(runs));
  write_bench(folder, "zero", bench::zero_document(tables, cells), bench::zero_csv(cells), json,
              ", zero_memory.csv");
  if (stopped) {
    throw Error(ErrorKind::again, "stopped before all cells have ended",
                "the same command goes on and keeps those that have");
  }
  return runs.empty() ? 1 : 0;
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
  add_recipes(*app, options->zero.recipes);
  app->add_option("--ranks", options->zero.ranks,
                  "Numbers of ranks of the stages. Default: none, if --scaling is there.")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(number_in(1, 1048576));
  app->add_option("--stages", options->zero.stages,
                  "ZeRO stages, 0 to 3. The first is that of weak scaling, and of one rank, which "
                  "divides nothing.\n"
                  "Default: 0,1,2,3.")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(number_in(0, 3));
  app->add_option("--offload", options->offloads,
                  "What rests on the host: none, optimizer, optimizer+parameters (stage 3 or one "
                  "rank). Default: none,optimizer.")
      ->delimiter(',')
      ->allow_extra_args(false);
  app->add_option("--pinned", options->pinned,
                  "Whether that host memory is page-locked: true, false, both. Default: true.")
      ->check(CLI::IsMember({"true", "false", "both"}));
  app->add_option("--scaling", options->zero.scaling,
                  "Numbers of ranks of weak scaling: batch.global, which is for the first of them, "
                  "grows with it.")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(number_in(1, 1048576));
  app->add_option("--samples-per-rank", options->zero.samples_per_rank,
                  "Training samples of weak scaling, times the ranks. Default: the recipe's.")
      ->check(number_in(1, 1 << 30));
  add_overrides(*app, options->zero.overrides);
  app->add_flag("--retry", options->retry, "Run the cells again that have failed.");
  app->add_option("-o,--output", options->output,
                  "Folder of the tables and of the runs. Default: bench-zero.");
  return {app, [options] { return bench_zero(*options); }};
}

}  // namespace dstrain
