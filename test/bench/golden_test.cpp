#include <fmt/format.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "engine/base/json.h"
#include "engine/bench/parallel_pages.h"
#include "engine/bench/parallel_plan.h"
#include "engine/bench/parallel_results.h"
#include "engine/bench/run_tables.h"
#include "engine/bench/variants.h"
#include "engine/bench/zero_pages.h"
#include "engine/bench/zero_plan.h"
#include "test/report/made_run.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace dstrain::bench {
namespace {

using test::MadeRun;
using test::slurp;
using test::spit;
using test::TempDir;

constexpr const char* kPlan =
    R"({"model":"vit-tiny","world_size":2,"zero_stage":1,"step_s":0.09,"step_without_exchanges_s":0.08,)"
    R"("batch":{"global":64,"micro":8,"micro_batches":4},"mesh":{"pipeline":2,"data":1},)"
    R"("memory":{"allocated_bytes":11297536,"device_bytes":25276063744,"total_bytes":12297536,)"
    R"("host_pinned_bytes":1048576,"host_pageable_bytes":2097152},)"
    R"("pipeline":{"schedule":"1f1b","stages":[{"blocks":[1,2],"allocated_bytes":9000000,"bubble_s":0.01},)"
    R"({"blocks":[1],"allocated_bytes":11297536,"bubble_s":0.02}]},)"
    R"("collectives":[{"name":"all-gather","purpose":"parameters","calls":6,"payload_bytes":2141184}]})";

/// A run with every figure that a folder tells, the `n`th of its bench.
void write_run(const std::filesystem::path& folder, int n, int steps) {
  const double step_s = 0.1 + 0.01 * n;
  MadeRun run{.steps = steps,
              .step_s = step_s,
              .gather = [](int rank) { return 0.002 * (rank + 1); },
              .reduce = [](int) { return 0.003; }};
  run.write(folder);
  std::string metrics;
  for (int step = 1; step <= steps; ++step) {
    const double time = step_s * (1 + 0.01 * (step % 5));
    metrics += fmt::format(
        R"({{"kind":"step","step":{},"epoch":{},"loss":{},"samples_per_s":{},"tokens_per_s":{},"mfu":{},"step_s":{},)"
        R"("memory_bytes":{},"memory_reserved_bytes":{},"skipped_steps":0}})"
        "\n",
        step, step / 10.0, 3.0 / step + 0.01 * n, 64 / time, 6400 / time, 0.04 / time, time,
        10000000 + n, 16000000);
  }
  metrics += fmt::format(
      R"({{"kind":"evaluation","step":{},"epoch":2,"loss":1.5,"accuracy":0.5,"samples":90,"seconds":0.5}})"
      "\n"
      R"({{"kind":"evaluation","step":{},"epoch":3,"loss":1.25,"accuracy":0.75,"samples":90,"seconds":1}})"
      "\n",
      steps / 2, steps);
  spit(folder / "metrics.jsonl", metrics);
  spit(folder / "plan.json", kPlan);
  for (const char* rank : {"rank0000.jsonl", "rank0001.jsonl"}) {
    std::string timings = slurp(folder / "ranks" / rank);
    const std::string_view none = R"("peak":0)";
    for (std::size_t at = 0; (at = timings.find(none, at)) != std::string::npos;)
      timings.replace(at, none.size(), R"("peak":9900000)");
    spit(folder / "ranks" / rank, timings);
  }
  spit(
      folder / "memory.csv",
      "timestamp, index, name, memory.used [MiB], memory.total [MiB]\n"
      "2026/11/23 09:42:33.587, 0, GPU, 100, 32768\n2026/11/23 09:42:33.587, 1, GPU, 50, 32768\n"
      "2026/11/23 09:42:34.587, 0, GPU, 900, 32768\n2026/11/23 09:42:34.587, 1, GPU, 800, 32768\n");
  spit(folder / "environment.json",
       R"({"build":"dstrain","system":"Linux","gpu_names":["NVIDIA H100"],"world_size":2})");
  std::string recipe = slurp("recipes/quickstart.yaml");
  recipe.replace(recipe.find("backend: gloo"), 13, "backend: nccl");
  spit(folder / "recipe.yaml", recipe);
  spit(folder / "cpu.txt",
       "# Elapsed time   CPU (%)     Real (MB)   Virtual (MB)\n 0.0 0.0 200.0 1000.0\n"
       " 1.0 180.0 400.0 1000.0\n");
}

/// Makes a bench in which the last case failed, and of `bench zero` the last one of its stages.
BenchResults made_results(const BenchPlan& plan, const std::filesystem::path& folder, int steps) {
  BenchLog log(folder, plan, false);
  int n = 0;
  for (const Turn& turn : turns(plan)) {
    const std::size_t next = turn.index + 1;
    const bool part = next < plan.cases.size() &&
                      plan.cases[next].first_ranks != plan.cases[next - 1].first_ranks;
    const bool fails = part || next == plan.cases.size();
    if (!fails) write_run(log.runs() / run_name(plan, turn), ++n, steps);
    log.add({.run = run_name(plan, turn),
             .exit_code = fails ? 137 : 0,
             .reason = fails ? "out of memory" : "",
             .seconds = 10.0 + n,
             .gpus_before_mib = {10, 20}});
    if (part) n = 0;
  }
  return bench_results(plan, log);
}

std::string text_of(const report::Document& document) {
  return report::document_markdown(document) + "\n";
}

/// Compares with a file of test/golden/bench, which DSTRAIN_UPDATE_GOLDEN=1 writes.
void check_golden(const char* name, const std::string& text) {
  const std::filesystem::path golden = std::filesystem::path("test/golden/bench") / name;
  if (std::getenv("DSTRAIN_UPDATE_GOLDEN") != nullptr) {
    std::filesystem::create_directories(golden.parent_path());
    spit(golden, text);
  }
  CHECK(text == slurp(golden));
}

TEST_CASE("the report of a run with every figure is that of test/golden/bench", "[bench]") {
  const TempDir dir;
  write_run(dir / "first", 1, 100);
  write_run(dir / "second", 2, 100);
  report::Report report =
      report::make_report({report::read_run(dir / "first"), report::read_run(dir / "second")}, {});
  for (report::RunFigures& run : report.runs) run.data.path = run.label;
  check_golden("report.txt",
               text_of(report::make_document(report, false)) + report::report_json(report));
}

TEST_CASE("tables and files of bench run are those of test/golden/bench", "[bench]") {
  const TempDir dir;
  const BenchPlan plan{
      .recipes = {"recipes/quickstart.yaml"},
      .cases = variant_cases(1, {2, 4},
                             {named_variant("zero2"), named_variant("zero2+offload"),
                              named_variant("zero2+offload+pinned"), named_variant("zero3")},
                             true),
      .repeat = 3,
      .steps = 80,
      .overrides = {}};
  const BenchPages pages = run_pages(made_results(plan, dir / "b", 100).cases, TableSet::full);
  std::string text = text_of(pages.document);
  for (const auto& [name, csv] : pages.files)
    text += fmt::format("{}\n{}\n", name.substr(6, name.size() - 10), csv);
  check_golden("run.txt", text + json_text(pages.json["results"], 1) + "\n");
}

TEST_CASE("tables and files of bench zero are those of test/golden/bench", "[bench]") {
  const TempDir dir;
  ZeroOptions options;
  options.recipes = {"recipes/quickstart.yaml"};
  options.ranks = {1, 2};
  options.stages = {0, 3};
  options.pinned = {true, false};
  options.scaling = {2, 4};
  const BenchPlan plan = zero_plan(options);
  const BenchPages pages = zero_pages(made_results(plan, dir / "z", 100));
  check_golden("zero.txt", text_of(pages.document) + pages.files.front().second +
                               json_text(pages.json, 1) + "\n");
}

TEST_CASE("tables and files of bench parallel are those of test/golden/bench", "[bench]") {
  const TempDir dir;
  ParallelOptions options;
  options.recipes = {"recipes/quickstart.yaml"};
  options.ranks = {1, 2, 4};
  std::vector<Case> cases = parallel_cases(options);
  cases.push_back(layout_case(0, 4, 64, 1, {"parallel.pipeline=2"}));
  cases.back().search = {.recipe = 0, .row = 1, .step_s = 0.12, .is_default = true};
  cases.push_back(layout_case(0, 4, 64, 2));
  cases.back().search = {.recipe = 0, .row = 2, .step_s = 0.13};
  const BenchPlan plan = parallel_plan(options, cases);
  BenchResults results = made_results(plan, dir / "p", plan.warmup + plan.steps + plan.tail);
  add_layouts(results, options.steps);
  const BenchPages pages = parallel_pages(results.cases);
  check_golden("parallel.txt", text_of(pages.document) + pages.files.front().second +
                                   json_text(pages.json, 1) + "\n");
}

}  // namespace
}  // namespace dstrain::bench
