#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/bench/run_tables.h"
#include "engine/bench/variants.h"
#include "test/report/made_run.h"
#include "test/support/catch.h"
#include "test/support/files.h"
#include "test/support/temp_dir.h"

namespace dstrain::bench {
namespace {

using test::MadeRun;
using test::spit;
using test::TempDir;

const report::Table& table(const BenchTables& tables, std::string_view file) {
  for (const BenchTable& one : tables.tables) {
    if (one.file == file) return one.table;
  }
  FAIL("no table " << file);
  return tables.tables[0].table;
}

std::string row_text(const report::Table& table, std::size_t row) {
  std::string text;
  for (const report::Cell& cell : table.rows.at(row)) text += (text.empty() ? "" : "|") + cell.text;
  return text;
}

/// Three repeats of two variants; the second is 25 % faster, one of its runs failed.
struct MadeBench {
  TempDir dir;
  BenchPlan plan{.recipes = {"recipes/quickstart.yaml"},
                 .cases = variant_cases(1, {2}, {named_variant("ddp"), named_variant("zero2")}),
                 .repeat = 3,
                 .steps = 80,
                 .overrides = {}};
  BenchLog log{dir / "b", plan, false};

  explicit MadeBench(double gain = 1.25, int failing = 0, double loss = 2) {
    for (const Turn& turn : turns(plan)) {
      const bool second = turn.index == 1;
      const std::string name = run_name(plan, turn);
      const double step_s = (second ? 0.1 / gain : 0.1) * (1 + 0.001 * turn.repeat);
      const std::string stage = second ? "2" : "0";
      MadeRun run{.step_s = step_s, .loss = second ? loss : 2};
      run.pace = [](int step) { return step <= 20 ? 5.0 : 1.0; };  // the warm-up
      run.write(log.runs() / name);
      const auto metrics = log.runs() / name / "metrics.jsonl";
      spit(
          metrics,
          test::slurp(metrics) +
              R"({"kind":"evaluation","step":50,"epoch":1,"loss":1.5,"samples":90,"seconds":0.5})"
              "\n"
              R"({"kind":"evaluation","step":100,"epoch":2,"loss":1.25,"samples":90,"seconds":1.0})"
              "\n");
      spit(
          log.runs() / name / "memory.csv",
          "timestamp, index, name, memory.used [MiB], memory.total [MiB]\n"
          "2026/11/23 09:42:33.587, 0, GPU, 100, 32768\n2026/11/23 09:42:33.587, 1, GPU, 5, 32768\n"
          "2026/11/23 09:42:33.587, 2, GPU, 101, 32768\n2026/11/23 09:42:34.587, 0, GPU, 900, "
          "32768\n"
          "2026/11/23 09:42:34.587, 1, GPU, 5, 32768\n2026/11/23 09:42:34.587, 2, GPU, 899, "
          "32768\n");
      spit(log.runs() / name / "cpu.txt",
           "# Elapsed time   CPU (%)     Real (MB)   Virtual (MB)\n"
           "       0.000        0.000      200.000     1000.000\n"
           "       1.000      180.000      400.000     1000.000\n");
      const bool fails = second && turn.repeat <= failing;
      log.add({.run = name,
               .exit_code = fails ? 137 : 0,
               .reason = fails ? "out of memory" : "",
               .seconds = second ? 8.0 : 10.0});
    }
  }
};

TEST_CASE("figures of a case are medians of its runs without their warm-up", "[bench]") {
  const MadeBench made;
  const std::vector<CaseResult> results = bench_results(made.plan, made.log).cases;
  REQUIRE(results.size() == 2);
  const CaseResult& ddp = results[0];
  const CaseResult& zero2 = results[1];
  CHECK(ddp.runs == 3);
  CHECK(ddp.value("samples_per_s") == Approx(640 / 1.002));
  CHECK(ddp.value("final_loss") == Approx(2));
  CHECK(ddp.evaluation_losses == std::vector<double>{1.5, 1.25});
  CHECK(ddp.value("evaluation_samples_per_s") == Approx(120));
  CHECK(ddp.value("gpu_peak") == 900);
  CHECK(ddp.value("gpu_mean") == Approx(500));  // the idle GPU does not count
  CHECK(ddp.value("gpu_min") == 100);
  CHECK(ddp.value("cpu_peak") == 400);
  CHECK(ddp.value("cpu_mean") == 300);
  CHECK(ddp.model == "vit-tiny");
  CHECK(ddp.data == "digits");
  CHECK(ddp.verdict == "baseline");
  CHECK(zero2.speed.value == Approx(1.25).epsilon(0.001));
  CHECK(zero2.verdict == "faster");
  CHECK(zero2.value("program_seconds") == 8);
  CHECK(std::isnan(zero2.value("efficiency")));

  const BenchTables tables = run_tables(results, TableSet::full);
  CHECK(row_text(table(tables, "1-training"), 0) == "quickstart|ddp|2|2|1.5, 1.25|638.72|120.00|-");
  CHECK(row_text(table(tables, "2-gpu-memory"), 1) == "quickstart|zero2|2|900|500|100");
  CHECK(row_text(table(tables, "4-configurations"), 1) == "vit-tiny|digits|zero2|2|900|400|8.0");
  CHECK(row_text(table(tables, "8-strategies"), 0) == "quickstart|ddp|2|638.72|900");
  CHECK(row_text(table(tables, "9-comparison"), 1).find("|faster|") != std::string::npos);
  CHECK(tables.left_out.size() == 4);  // pinned, scaling, two of offload
  CHECK(table_csv(table(tables, "1-training")).find("\nquickstart,zero2,2,2,\"1.5, 1.25\",798.4") !=
        std::string::npos);
  CHECK(run_tables(results, TableSet::seeds).tables.size() == 4);
  CHECK(report::document_markdown(run_pages(results, TableSet::full).document)
            .find("| quickstart | zero2 | 2 | 900 | 500 | 100 |") != std::string::npos);
  CHECK(results_json(results)[1]["speed"]["interval"].size() == 2);
}

TEST_CASE("equal speed is no difference, worse loss no gain, a failed run a row", "[bench]") {
  const MadeBench equal(1.0);
  CHECK(bench_results(equal.plan, equal.log).cases[1].verdict == "no difference shown");
  const MadeBench worse(1.25, 0, 2.5);
  CHECK(bench_results(worse.plan, worse.log).cases[1].verdict.find("loss parity failed") == 0);
  const MadeBench failing(1.25, 3);
  const std::vector<CaseResult> results = bench_results(failing.plan, failing.log).cases;
  CHECK(results[1].runs == 0);
  CHECK(results[1].failure == "out of memory");
  CHECK(results[1].model == "vit-tiny");
  const BenchTables tables = run_tables(results, TableSet::seeds);
  CHECK(row_text(table(tables, "8-strategies"), 1) == "quickstart|zero2|2|-|-");
  const std::string text = report::document_text(run_pages(results, TableSet::seeds).document, 200);
  CHECK(text.find("quickstart, zero2, 2 ranks: out of memory") != std::string::npos);
  const MadeBench once(1.25, 2);
  CHECK(bench_results(once.plan, once.log).cases[1].verdict ==
        "one run each: drift of the machine not covered");
}

TEST_CASE("scaling is held against the first number of ranks", "[bench]") {
  const BenchPlan plan{.recipes = {"recipes/quickstart.yaml"},
                       .cases = variant_cases(1, {2, 4}, {named_variant("zero2")}, true),
                       .repeat = 1,
                       .steps = 80,
                       .overrides = {}};
  const TempDir dir;
  BenchLog log(dir / "b", plan, false);
  for (const Turn& turn : turns(plan)) {
    const std::string name = run_name(plan, turn);
    MadeRun{.ranks = turn.index == 0 ? 2 : 4, .step_s = turn.index == 0 ? 0.1 : 0.0625}.write(
        log.runs() / name);
    log.add({.run = name, .seconds = 7});
  }
  const std::vector<CaseResult> results = bench_results(plan, log).cases;
  CHECK(results[0].value("efficiency") == Approx(1));
  CHECK(results[1].value("efficiency") == Approx(0.8));  // 1.6 times the rate on twice the ranks
  const BenchTables tables = run_tables(results, TableSet::seeds);
  CHECK(table(tables, "5-scaling").rows.at(1).at(6).value == Approx(0.8));
}

TEST_CASE("offload and pinned memory are paired with the same variant without them", "[bench]") {
  std::vector<CaseResult> results;
  const auto add = [&](const char* variant, double gpu, double seconds) {
    CaseResult result{.which = {.ranks = 2, .name = variant}, .recipe = "a"};
    result.figures["gpu_peak"].value = gpu;
    result.figures["program_seconds"].value = seconds;
    results.push_back(result);
  };
  add("zero2", 1000, 10);
  add("zero2+offload", 600, 15);
  add("zero3", 800, 12);
  add("zero2+offload+pinned", 600, 12);
  add("zero2+offload+pageable", 600, 15);
  const BenchTables tables = run_tables(results, TableSet::seeds);
  REQUIRE(table(tables, "7-offload-savings").rows.size() == 1);
  CHECK(row_text(table(tables, "7-offload-savings"), 0) == "a|zero2|2|40.0|50.0");
  CHECK(table(tables, "6-offload").rows.size() == 2);
  CHECK(row_text(table(tables, "6-offload"), 1) == "a|zero2|yes|2|600|-|-");
  REQUIRE(table(tables, "3-pinned").rows.size() == 2);
  CHECK(row_text(table(tables, "3-pinned"), 0) == "a|zero2+offload|true|2|600|-|12.0|-");
  CHECK(row_text(table(tables, "3-pinned"), 1) == "a|zero2+offload|false|2|600|-|15.0|-");
}

}  // namespace
}  // namespace dstrain::bench
