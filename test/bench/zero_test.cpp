#include <filesystem>

#include "engine/base/error.h"
#include "engine/bench/bench_log.h"
#include "engine/bench/zero_pages.h"
#include "engine/bench/zero_plan.h"
#include "engine/bench/zero_tables.h"
#include "test/support/catch.h"
#include "test/support/files.h"
#include "test/support/temp_dir.h"

namespace dstrain::bench {
namespace {

using enum ZeroOffload;

ZeroOptions zero_options() {
  ZeroOptions options;
  options.recipes = {"recipes/quickstart.yaml"};
  options.ranks = {2};
  return options;
}

std::vector<std::string> names_of(const BenchPlan& plan) {
  std::vector<std::string> names;
  for (const Turn& turn : turns(plan)) names.push_back(run_name(plan, turn));
  return names;
}

/// A cell that took `seconds` and held `mib`.
CaseResult cell(ZeroWay way, int ranks, double mib, double seconds) {
  CaseResult r{.which = {.ranks = ranks, .way = way}, .recipe = "a"};
  r.model = "bloom";
  r.data = "squad";
  r.runs = 1;
  report::Figures& figures = r.figures;
  figures["gpu_added_peak"].value = mib;
  figures["gpu_added_mean"].value = mib / 2;
  figures["device_planned"].value = mib * 1.01 * (1 << 20);
  figures["host_planned"].value = way.offload == none ? 0 : 64.0 * (1 << 20);
  figures["cpu_mean"].value = 100;
  figures["cpu_peak"].value = 200;
  figures["train_seconds"].value = seconds;
  figures["program_seconds"].value = seconds + 5;
  figures["step_s"].value = seconds / 10;
  figures["planned_step_s"].value = seconds / 10 * 0.9;
  figures["samples_per_s"].value = 640 / seconds;
  figures["final_loss"].value = 2;
  figures["evaluation_loss"].value = 1.25;
  return r;
}

const BenchTable& zero_table(const BenchTables& tables, std::string_view file) {
  for (const BenchTable& one : tables.tables) {
    if (one.file == file) return one;
  }
  FAIL("no table " << file);
  return tables.tables[0];
}

std::string row_text(const BenchTable& table, std::size_t row) {
  std::string text;
  for (const report::Cell& one : table.table.rows.at(row))
    text += (text.empty() ? "" : "|") + one.text;
  return text;
}

TEST_CASE("every stage is run without offload and with each place of it", "[bench]") {
  ZeroOptions options = zero_options();
  options.pinned = {true, false};
  options.stages = {2, 3};
  CHECK(names_of(zero_plan(options)) ==
        std::vector<std::string>{
            "quickstart-zero2-2-ranks-1", "quickstart-zero2+optimizer+pinned-2-ranks-1",
            "quickstart-zero2+optimizer+pageable-2-ranks-1", "quickstart-zero3-2-ranks-1",
            "quickstart-zero3+optimizer+pinned-2-ranks-1",
            "quickstart-zero3+optimizer+pageable-2-ranks-1"});
  const BenchPlan plan = zero_plan(options);
  CHECK(turn_overrides(plan, {.index = 2}) ==
        std::vector<std::string>{"run.checkpoint.every=never", "parallel.zero.stage=2",
                                 "memory.offload.optimizer=pageable",
                                 "memory.offload.parameters=none", "metrics.sample_s=0.1"});
}

TEST_CASE("parameters are offloaded under stage 3 or on one rank alone", "[bench]") {
  ZeroOptions options = zero_options();
  options.offloads = {optimizer_and_parameters};
  options.ranks = {1, 2};
  options.stages = {2, 3};
  CHECK(names_of(zero_plan(options)) ==
        std::vector<std::string>{"quickstart-zero2+optimizer+parameters+pinned-1-ranks-1",
                                 "quickstart-zero3+optimizer+parameters+pinned-2-ranks-1"});
  options.ranks = {2};
  options.stages = {0, 2};
  CHECK_THROWS_AS(zero_plan(options), Error);
  options.ranks = {};  // weak scaling alone
  CHECK(turns(zero_plan(options)).empty());
  CHECK_THROWS_AS(zero_offload("parameters"), Error);
  CHECK(zero_offload("optimizer+parameters") == optimizer_and_parameters);
}

TEST_CASE("weak scaling grows batch and samples with the ranks", "[bench]") {
  ZeroOptions options = zero_options();
  options.ranks = {};
  options.scaling = {2, 4};
  options.overrides = {"data.name=random"};
  options.samples_per_rank = 100;
  const BenchPlan plan = zero_plan(options);
  const std::vector<std::string> overrides = turn_overrides(plan, {.index = 1});
  CHECK(overrides[1] == "batch.global=128");
  CHECK(overrides[2] == "data.samples=400");
  CHECK(turn_fingerprint(plan, {.index = 0}) != turn_fingerprint(plan, {.index = 1}));
  CHECK(turn_fingerprint(plan, {.index = 1}) == turn_fingerprint(plan, {.index = 1}));
  options.overrides = {};  // digits have a limit of samples of their own
  CHECK(turn_overrides(zero_plan(options), {.index = 0})[2] == "data.subset=200");
}

TEST_CASE("a folder keeps its runs under another plan and the last record of a run holds",
          "[bench]") {
  const test::TempDir dir;
  BenchPlan plan = zero_plan(zero_options());
  {
    BenchLog log(dir / "b", plan, true);
    log.add({.run = "x", .exit_code = 1, .reason = "no", .fingerprint = "1"});
    log.add({.run = "x", .fingerprint = "2", .gpus_before_mib = {10, 20.5}});
  }
  plan.cases.pop_back();
  const BenchLog log(dir / "b", plan, true);
  REQUIRE(log.records().size() == 1);
  CHECK(log.find("x")->fingerprint == "2");
  CHECK(log.find("x")->exit_code == 0);
  CHECK(log.find("x")->gpus_before_mib == std::vector<double>{10, 20.5});
}

TEST_CASE("memory before the start is taken off, GPU by GPU", "[bench]") {
  std::vector<report::GpuSample> samples;
  for (const auto& [index, mib] : {std::pair(0, 500.0), {1, 900.0}, {0, 700.0}, {1, 900.0}}) {
    samples.push_back({.time = "", .index = index, .name = ""});
    samples.back().memory_mib = mib;
  }
  CHECK(report::gpu_memory(samples, 1).peak == 900);
  // The second GPU was in use by others.
  CHECK(report::gpu_memory(samples, 1, {100, 890}).peak == 600);
  CHECK(report::gpu_memory(samples, 1, {100, 890}).mean == 500);
}

TEST_CASE("tables of stages, offload and pinned memory with what they answer", "[bench]") {
  std::vector<CaseResult> cells = {
      cell({.stage = 0}, 2, 1000, 10), cell({.stage = 3}, 2, 800, 12),
      cell({.stage = 3, .offload = optimizer}, 2, 400, 18),
      cell({.stage = 3, .offload = optimizer, .pinned = false}, 2, 400, 24)};
  cells.push_back(cell({.stage = 3, .offload = optimizer_and_parameters}, 2, 1, 1));
  cells.back() = {.which = cells.back().which, .recipe = "a", .failure = "plan: x"};
  const BenchTables tables = zero_tables(cells);
  const BenchTable& stages = zero_table(tables, "1-stages-1");
  CHECK(stages.title == "a on 2 ranks: stages without and with offload");
  CHECK(stages.table.header == std::vector<std::string>{"", "stage 0", "stage 3",
                                                        "stage 3 + optimizer, pinned",
                                                        "stage 3 + optimizer, pageable",
                                                        "stage 3 + optimizer+parameters, pinned"});
  CHECK(row_text(stages, 0) == "Train Runtime (sec)|10.00|12.00|18.00|24.00|-");
  CHECK(row_text(stages, 8) == "Peak GPU Memory (MiB)|1000|800|400|400|-");
  CHECK(row_text(stages, 9) == "Peak GPU Memory as planned (MiB)|1010|808|404|404|-");
  CHECK(stages.sentences ==
        std::vector<std::string>{
            "Least peak GPU memory: stage 3 + optimizer, pinned with 400 MiB, 60.0 % less than "
            "stage 0.",
            "Without offload: stage 3 with 800 MiB.",
            "Fastest: stage 0 with 64.0 samples/s; slowest: stage 3 + optimizer, pageable with "
            "26.7.",
            "Train loss: the same in all 4 cells.",
            "GPU memory was planned +1.0 % to +1.0 % beside the measured.",
            "The step was planned -10.0 % to -10.0 % beside the measured."});
  CHECK(stages.not_run.value() ==
        std::vector<std::string>{"a on 2 ranks, stage 3 + optimizer+parameters, pinned: plan: x"});

  const BenchTable& offload = zero_table(tables, "2-offload");
  REQUIRE(offload.table.rows.size() == 3);
  CHECK(row_text(offload, 0) ==
        "bloom, squad (a)|2|3|optimizer, pinned|800|808|400|404|50.0|50.0|12.00|18.00|50.0");
  CHECK(offload.sentences ==
        std::vector<std::string>{
            "Offload saves most under stage 3 + optimizer, pinned: 50.0 % of peak GPU memory.",
            "Offload changes the train runtime by +50.0 % (stage 3 + optimizer, pinned) to "
            "+100.0 % (stage 3 + optimizer, pageable)."});
  CHECK(offload.not_run->size() == 1);

  const BenchTable& pinned = zero_table(tables, "3-pinned");
  CHECK(row_text(pinned, 0) ==
        "bloom, squad (a)|2|stage 3 + optimizer|true|400|404|200|64|23.0|18.00");
  CHECK(row_text(pinned, 1) ==
        "bloom, squad (a)|2|stage 3 + optimizer|false|400|404|200|64|29.0|24.00");
  CHECK(pinned.sentences ==
        std::vector<std::string>{"stage 3 + optimizer: pinned memory trains in 18.00 s, pageable "
                                 "in 24.00 s: pinned takes 25.0 % less."});
  CHECK(tables.left_out.size() == 2);  // scaling, one rank
}

TEST_CASE("cells with the same reason are named together", "[bench]") {
  std::vector<CaseResult> cells = {cell({.stage = 0}, 8, 1, 1), cell({.stage = 1}, 8, 1, 1),
                                   cell({.stage = 2}, 8, 1, 1)};
  for (CaseResult& one : cells) {
    one.runs = 0;
    one.failure = one.which.way.stage == 1 ? "out of memory" : "needs 8 GPUs";
  }
  CHECK(zero_table(zero_tables(cells), "1-stages-1").not_run.value() ==
        std::vector<std::string>{"a on 8 ranks, stage 0; stage 2: needs 8 GPUs",
                                 "a on 8 ranks, stage 1: out of memory"});
}

TEST_CASE("weak scaling says whether memory stayed constant", "[bench]") {
  std::vector<CaseResult> cells = {cell({}, 2, 1000, 10), cell({}, 4, 1010, 12.5),
                                   cell({}, 8, 1, 1)};
  for (CaseResult& one : cells) one.which.weak = true;
  cells[0].figures["efficiency"].value = 1;
  cells[1].figures["efficiency"].value = 0.8;
  cells[2].runs = 0;
  cells[2].failure = "needs 8 GPUs, this machine has 4";
  BenchTables tables = zero_tables(cells);
  const BenchTable& scaling = zero_table(tables, "4-scaling");
  CHECK(scaling.title == "Weak scaling, stage 0");
  CHECK(scaling.table.rows[1].back().text == "80.0");
  CHECK(scaling.sentences[0] ==
        "Peak GPU memory stayed constant from 2 to 4 ranks: 1000 MiB to 1010 MiB (1.0 % apart).");
  CHECK(scaling.sentences[1] == "4 ranks keep 80.0 % of the rate a rank had on 2.");
  CHECK(scaling.not_run.value() ==
        std::vector<std::string>{"a on 8 ranks, stage 0: needs 8 GPUs, this machine has 4"});
  cells[1].figures["gpu_added_peak"].value = 1100;
  tables = zero_tables(cells);
  CHECK(zero_table(tables, "4-scaling").sentences[0].find("grew from 2 to 4 ranks") !=
        std::string::npos);
  cells.resize(1);
  CHECK(zero_table(zero_tables(cells), "4-scaling").sentences.size() == 1);
}

TEST_CASE("on one rank all stages are the same, and the table says so", "[bench]") {
  const std::vector<CaseResult> cells = {cell({.stage = 2}, 1, 1000, 10.2),
                                         cell({.stage = 2, .offload = optimizer}, 1, 500, 12)};
  const BenchTables tables = zero_tables(cells);
  const BenchTable& one = zero_table(tables, "5-one-rank");
  CHECK(row_text(one, 1) ==
        "bloom, squad (a)|stage 2 + optimizer, pinned|500|505|200|64|17.0|1200.00|1080.00");
  CHECK(one.not_run->empty());
  CHECK(one.sentences[0].find("all stages are the same") != std::string::npos);
}

TEST_CASE("a cell is a row of CSV and an object of JSON, whether it ran or not", "[bench]") {
  std::vector<CaseResult> cells = {cell({.stage = 1}, 2, 1000, 10),
                                   cell({.stage = 1, .offload = optimizer}, 2, 1, 1)};
  cells[1] = {.which = cells[1].which, .recipe = "a", .failure = "no, \"x\""};
  const BenchPages pages = zero_pages({.cases = cells, .runs = {}});
  const std::string& csv = pages.files.front().second;
  CHECK(csv.find("\na,bloom,squad,2,1,none,,,15,10,,64,2,1.25,,1000,1010,500,") !=
        std::string::npos);
  CHECK(csv.find("\na,,,2,1,optimizer,true,,,") != std::string::npos);
  CHECK(csv.find(",\"no, \"\"x\"\"\"\n") != std::string::npos);
  const auto& json = pages.json;
  CHECK(json["cells"][1]["failure"] == "no, \"x\"");
  CHECK(json["cells"][0]["pinned"].is_null());
  CHECK(json["cells"][1]["pinned"] == true);
  CHECK(json["tables"][0]["rows"][0][1] == 10.0);
  report::RunFigures run;
  run.data.name = "r";
  run.data.cpu = {{.elapsed_s = 0.1, .share = 50, .resident_mib = 200, .virtual_mib = 900}};
  CHECK(memory_series_csv({run}) ==
        "run,elapsed_s,cpu_percent,real_mib,virtual_mib\nr,0.100,50.0,200.000,900.000\n");
}

}  // namespace
}  // namespace dstrain::bench
