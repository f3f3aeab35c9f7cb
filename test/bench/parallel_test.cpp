#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/bench/parallel_collectives.h"
#include "engine/bench/parallel_pages.h"
#include "engine/bench/parallel_plan.h"
#include "engine/bench/parallel_ranks.h"
#include "engine/bench/parallel_results.h"
#include "engine/bench/parallel_tables.h"
#include "test/support/catch.h"

namespace dstrain::bench {
namespace {

using nlohmann::json;

constexpr const char* kQwen = "recipes/qwen/qwen2.5-3b_random.yaml";

ParallelOptions parallel_options() {
  ParallelOptions options;
  options.recipes = {kQwen};
  options.ranks = {1, 2, 4};
  options.overrides = {"data.sequence=1024"};
  return options;
}

std::vector<std::pair<int, int>> batches(const std::vector<Case>& cases) {
  std::vector<std::pair<int, int>> list;
  for (const Case& one : cases) list.emplace_back(one.ranks, one.samples);
  return list;
}

/// Four ranks whose plan and run are these.
CaseResult ran(const report::RunFigures& run) {
  CaseResult result{.which = {.ranks = 4, .weak = true, .samples = 16}, .recipe = "a"};
  add_planned(result, {.plan = run.data.plan});
  result.runs = 1;
  add_layout(result);
  add_run(result, run, 2);
  return result;
}

double& step_s(CaseResult& result) { return result.figures["step_s"].value; }

/// Two stages of two tensor ranks; the second holds more.
json plan_json() {
  return {{"mesh", {{"pipeline", 2}, {"tensor", 2}, {"data", 1}}},
          {"world_size", 4},
          {"zero_stage", 1},
          {"batch", {{"micro", 2}, {"micro_batches", 8}}},
          {"step_s", 0.1},
          {"memory", {{"allocated_bytes", 900}}},
          {"pipeline",
           {{"schedule", "1f1b"},
            {"stages",
             {{{"blocks", {3, 4}}, {"allocated_bytes", 800}, {"bubble_s", 0.01}},
              {{"blocks", {5}}, {"allocated_bytes", 900}, {"bubble_s", 0.03}}}}}},
          {"collectives",
           {{{"name", "all-gather"},
             {"purpose", "activations inside blocks"},
             {"calls", 6},
             {"payload_bytes", 600}},
            {{"name", "send"},
             {"purpose", "activations between stages"},
             {"calls", 8},
             {"payload_bytes", 80}}}}};
}

report::TimingRow timing(std::int64_t step, double receive, double exposed) {
  report::TimingRow row{.step = step, .step_s = 0.2};
  row.wait_gather_s = 0.001;
  row.wait_reduce_s = 0.002;
  row.wait_receive_s = receive;
  row.wait_send_s = 0.004;
  row.exposed_comm_s = exposed;
  row.calls = {{"all_gather tensor-compute", {6, 600}}, {"send pipeline-send_up", {8, 80}}};
  return row;
}

/// Four ranks with steps 1 to 5; ranks 2 and 3 are the second stage, which waits longer.
report::RunFigures some_run() {
  report::RunFigures run;
  run.data.plan = plan_json();
  run.data.warmup = 2;
  run.device = "CPU";
  run.figures["step_s"].value = 0.2;
  run.figures["samples_per_s"].value = 80;
  run.figures["tokens_per_s"].value = 81'920;
  for (int rank = 0; rank < 4; ++rank) {
    report::RankTimings timings{.rank = rank, .rows = {}};
    for (int step = 1; step <= 5; ++step) {
      const double receive = step <= 2 ? 10 : rank < 2 ? 0.01 : 0.03;
      timings.rows.push_back(timing(step, receive, receive + 0.001 + 0.002 + 0.004 + 0.005));
      timings.rows.back().peak = 100.0 * (rank + 1);
    }
    timings.rows.back().traced = true;
    timings.rows.back().wait_receive_s = 5;
    run.data.ranks.push_back(std::move(timings));
  }
  return run;
}

trace::RankFigures traced_rank(int rank, std::int64_t forward) {
  trace::RankFigures figures;
  figures.rank = rank;
  figures.steps = {{4, {}}, {5, {}}};
  figures.kinds = {
      {.lane = "compute", .kind = "forward", .count = 2, .ns = forward, .collectives = 4'000'000},
      {.lane = "compute", .kind = "recompute", .count = 2, .ns = 10'000'000},
      {.lane = "compute", .kind = "backward_input", .count = 2, .ns = 60'000'000},
      {.lane = "compute", .kind = "backward_weight", .count = 2, .ns = 30'000'000},
      {.lane = "compute", .kind = "norm", .count = 2, .ns = 14'000'000},
      {.lane = "compute", .kind = "update", .count = 2, .ns = 6'000'000},
      {.lane = "gather", .kind = "gather", .count = 2, .ns = 99'000'000}};
  return figures;
}

}  // namespace

TEST_CASE("weak and strong scaling are one run where their batches are equal", "[bench]") {
  ParallelOptions options = parallel_options();
  CHECK(batches(parallel_cases(options)) ==
        std::vector<std::pair<int, int>>{{1, 16}, {1, 64}, {2, 32}, {2, 64}, {4, 64}});
  CHECK(parallel_cases(options).back().weak);
  CHECK(parallel_cases(options).back().strong);
  options.tokens_per_rank = 4096;
  options.strong = false;
  CHECK(batches(parallel_cases(options)) ==
        std::vector<std::pair<int, int>>{{1, 4}, {2, 8}, {4, 16}});
  options.tokens_per_rank = 1000;
  CHECK_THROWS_AS(parallel_cases(options), Error);
  options = parallel_options();
  options.recipes = {"recipes/quickstart.yaml"};
  options.overrides = {};
  options.weak = false;
  CHECK(batches(parallel_cases(options)) ==
        std::vector<std::pair<int, int>>{{1, 64}, {2, 64}, {4, 64}});
  options.tokens = 1024;
  CHECK_THROWS_AS(parallel_cases(options), Error);
}

TEST_CASE("a run of bench parallel ends with traced steps and with some without exchanges",
          "[bench]") {
  ParallelOptions options = parallel_options();
  options.steps = 10;
  options.warmup = 3;
  options.ranks = {2};
  std::vector<Case> cases = parallel_cases(options);
  cases.push_back(layout_case(0, 2, 64, 1, {"parallel.pipeline=2"}));
  const BenchPlan plan = parallel_plan(options, cases);
  const std::vector<std::string> overrides = turn_overrides(plan, {.index = 1});
  const auto has = [&](const char* one) {
    return std::ranges::find(overrides, one) != overrides.end();
  };
  CHECK(has("run.steps=23"));
  CHECK(has("trace.first=15"));
  CHECK(has("trace.steps=3"));
  CHECK(has("trace.warmup=1"));
  // One of warm-up, and the last five.
  CHECK(plan.environment == std::vector<std::string>{"DSTRAIN_SKIP_EXCHANGES=18"});
  const std::vector<std::string> words = launch_arguments(plan, {.index = 0}, "runs");
  CHECK(std::ranges::search(words, std::vector<std::string>{"--env", plan.environment.front()})
            .size() == 2);
  CHECK(has("batch.global=64"));
  CHECK(has("parallel.pipeline=2"));
  CHECK(run_name(plan, {.index = 0}) == "qwen2.5-3b_random-batch64-2-ranks-1");
  CHECK(run_name(plan, {.index = 1}) == "qwen2.5-3b_random-batch64-auto1-2-ranks-1");
}

TEST_CASE("bubbles and peaks belong to stages, over the steps that count", "[bench]") {
  const CaseResult result = ran(some_run());
  CHECK(result.layout == "pipeline 2 x tensor 2, ZeRO 1");
  CHECK(result.value("planned_bubble") == Approx(0.2));
  REQUIRE(result.stages.size() == 2);
  CHECK(result.stages[0].blocks == "3, 4");
  CHECK(result.stages[1].planned == 900);
  CHECK(result.stages[0].peak == 200);
  CHECK(result.stages[1].peak == 400);
  CHECK(result.value("peak_bytes") == 400);
  // Receives, sends and the norm of 5 ms.
  CHECK(result.stages[0].bubble == Approx((0.01 + 0.004 + 0.005) / 0.2));
  CHECK(result.stages[1].bubble == Approx((0.03 + 0.004 + 0.005) / 0.2));
  CHECK(result.value("bubble") == Approx(0.145));
  CHECK(result.value("exposed_norm_s") == Approx(0.005));
  CHECK(result.value("exposed_stages_s") == Approx(0.024));
  CHECK(result.value("rate_per_rank") == 20'480);
  CHECK(std::isnan(result.value("mfu")));
  CHECK(std::isnan(result.value("forward_s")));
}

TEST_CASE("a step that is timed behind those that count stands in for them", "[bench]") {
  report::RunData run = some_run().data;
  for (report::RankTimings& rank : run.ranks)
    std::erase_if(rank.rows, [](const report::TimingRow& row) { return row.step < 5; });
  const std::vector<RankMeasure> measures = rank_measures(run, 2);
  REQUIRE(measures.size() == 4);
  CHECK(measures[3].stage == 1);
  CHECK(measures[3].exposed.stages == Approx(5.004));
  for (report::RankTimings& rank : run.ranks) rank.rows.back().step = 9;  // without exchanges
  CHECK(rank_measures(run, 2).empty());
  for (report::RankTimings& rank : run.ranks) rank.rows.back().step = 5;
  run.warmup = 5;
  CHECK(rank_measures(run, 2).empty());
}

TEST_CASE("parts of a step are times of the compute lane in the traced steps", "[bench]") {
  report::RunFigures run = some_run();
  run.data.traced = report::TracedSteps{};
  run.data.traced->analysis.ranks = {traced_rank(0, 40'000'000), traced_rank(1, 80'000'000)};
  run.data.traced->analysis.collectives.emplace();
  run.data.traced->analysis.collectives->rows = {{.operation = "all_gather",
                                                  .group = "tensor-compute-0 [0, 1]",
                                                  .group_size = 2,
                                                  .bytes = 1000,
                                                  .count = 3,
                                                  .median = 1000},
                                                 {.operation = "all_gather",
                                                  .group = "tensor-compute-2 [2, 3]",
                                                  .group_size = 2,
                                                  .bytes = 1000,
                                                  .count = 3,
                                                  .median = 3000},
                                                 {.operation = "send",
                                                  .group = "pipeline-send_up-0 [0, 2]",
                                                  .group_size = 2,
                                                  .bytes = 9,
                                                  .count = 1,
                                                  .partial = 1,
                                                  .median = 10}};
  const CaseResult result = ran(run);
  CHECK(result.value("forward_s") == Approx(0.030));
  CHECK(result.value("backward_s") == Approx(0.035));
  CHECK(result.value("weight_s") == Approx(0.015));
  CHECK(result.value("optimizer_s") == Approx(0.010 - 0.005));  // without the wait in norm
  CHECK(result.value("exposed_blocks_s") == Approx(0.002));
  REQUIRE(result.collectives.size() == 2);
  const CollectiveFigures& gather = result.collectives[0];
  CHECK(gather.calls == 6);
  CHECK(gather.bytes == gather.planned_bytes);
  CHECK(gather.bus_rate == Approx(0.5 * 6000 / 12e-6));
  CHECK(result.collectives[1].bytes == 80);
  CHECK(std::isnan(result.collectives[1].bus_rate));
}

TEST_CASE("gathers are of gradients where the plan says so, else of parameters", "[bench]") {
  report::RunData run = some_run().data;
  for (auto& row : run.ranks[3].rows) row.calls = {{"all_gather tensor-gather", {1, 10}}};
  const auto counted = [&](const char* planned) {
    std::vector<CollectiveFigures> list = {
        {.operation = "all_gather", .purpose = planned, .planned_calls = 1, .planned_bytes = 10}};
    add_counted(list, run, 3);
    REQUIRE(list.size() == 1);
    return list[0].bytes;
  };
  CHECK(counted("gradients") == 10);
  CHECK(counted("parameters") == 10);
}

TEST_CASE("calls are per step where not every step is timed", "[bench]") {
  report::RunData run = some_run().data;
  auto& rows = run.ranks[3].rows;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].step = static_cast<std::int64_t>(4 * i + 1);
    rows[i].calls = {{"all_reduce world-compute", {4, 128}}};
  }
  rows[0].calls = {{"all_reduce world-compute", {100, 100}}};
  std::vector<CollectiveFigures> list = planned_collectives(plan_json());
  add_counted(list, run, 3);
  REQUIRE(list.size() == 3);
  CHECK(list[2].purpose == "norm and metrics");
  CHECK(list[2].calls == 1);
  CHECK(list[2].bytes == 32);
  CHECK(list[2].planned_bytes == 0);
}

TEST_CASE("a search whose order does not hold says which rows change places", "[bench]") {
  std::vector<CaseResult> results;
  for (int row = 1; row <= 3; ++row) {
    CaseResult result{
        .which = {.ranks = 2, .search = {.recipe = 0, .row = row, .step_s = 0.1 * row}},
        .recipe = "a",
        .runs = 1};
    step_s(result) = row == 3 ? 0.05 : 0.1 * row;
    results.push_back(std::move(result));
  }
  const auto sentence = [&] { return parallel_tables(results).back().sentences.front(); };
  CHECK(sentence() ==
        "2 ranks: the measured order differs: row 3 is 50.0 % faster than row 1, row 3 is "
        "75.0 % faster than row 2.");
  step_s(results[2]) = 0.3;
  CHECK(sentence() == "2 ranks: the measured order is the predicted one.");
  step_s(results[2]) = 0.199;
  CHECK(sentence() ==
        "2 ranks: the measured order is the predicted one, but for differences below 1 %.");
  step_s(results[2]) = 0.3;
  // The recipe's own layout takes its place by what its plan says.
  results.push_back(
      {.which = {.ranks = 2, .strong = true, .search = {.recipe = 0}}, .recipe = "own", .runs = 1});
  results.back().figures["planned_step_s"].value = 0.15;
  step_s(results.back()) = 0.25;
  CHECK(sentence() == "2 ranks: the measured order differs: row 2 is 20.0 % faster than own.");
  results.back().figures["planned_step_s"].value = kUnknown;  // it does not fit these ranks
  CHECK(sentence() == "2 ranks: the measured order is the predicted one.");
  results.pop_back();
  results[1].runs = results[2].runs = 0;
  CHECK(sentence() == "2 ranks: fewer than two rows ran, so there is no order to compare.");
  CHECK(not_run(results).size() == 2);
}

TEST_CASE("every row of parallel.csv has a field for each key, known or not", "[bench]") {
  const CaseResult refused{
      .which = {.ranks = 8}, .recipe = "a", .failure = "needs 8 GPUs, this machine has 0"};
  const BenchPages pages = parallel_pages({ran(some_run()), refused});
  const std::string& csv = pages.files.front().second;
  CHECK(std::ranges::count(csv, '\n') == 3);
  const auto& document = pages.json;
  CHECK(document["rows"][0]["stages"].size() == 2);
  CHECK(document["rows"][1]["step_s"].is_null());
  CHECK(document["not_run"].size() == 1);
  CHECK(document["tables"][0]["name"] == "1-speed");
}

}  // namespace dstrain::bench
