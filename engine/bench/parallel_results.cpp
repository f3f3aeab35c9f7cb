#include "engine/bench/parallel_results.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <thread>

#include "engine/base/side_by_side.h"
#include "engine/bench/bench_results.h"
#include "engine/bench/parallel_collectives.h"
#include "engine/bench/parallel_ranks.h"
#include "engine/report/statistics.h"

namespace dstrain::bench {
namespace {

using nlohmann::json;
using report::number;

double mean(const std::vector<double>& values) {
  double sum = 0, count = 0;
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    sum += value;
    ++count;
  }
  return count > 0 ? sum / count : kUnknown;
}

json child(const json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return object.is_object() && found != object.end() ? *found : json();
}

std::string chunk_words(const json& blocks) {
  std::string text;
  for (const json& one : blocks) {
    if (one.is_number_integer())
      text += fmt::format("{}{}", text.empty() ? "" : ", ", one.get<int>());
  }
  return text;
}

void add_stages(ParallelResult& result, const json& plan) {
  const json stages = child(child(plan, "pipeline"), "stages");
  if (!stages.is_array() || stages.empty()) {
    result.stages = {{.stage = 0, .planned = result.planned_memory}};
    return;
  }
  result.stages.clear();
  std::vector<double> bubbles;
  for (const json& stage : stages) {
    bubbles.push_back(number(stage, "bubble_s") / result.planned_step_s);
    result.stages.push_back({.stage = static_cast<int>(result.stages.size()),
                             .blocks = chunk_words(child(stage, "blocks")),
                             .planned = number(stage, "allocated_bytes"),
                             .planned_bubble = bubbles.back()});
  }
  result.planned_bubble = mean(bubbles);
}

/// Time of the compute lane by kind of action, mean of the traced ranks.
void add_traced(ParallelResult& result, const trace::Analysis& analysis) {
  std::vector<double> forward, backward, weight, optimizer, blocks;
  for (const trace::RankFigures& rank : analysis.ranks) {
    if (rank.kinds.empty() || rank.steps.empty()) continue;
    double f = 0, b = 0, w = 0, o = 0, inside = 0;
    const double per_step = 1e-9 / static_cast<double>(rank.steps.size());
    for (const trace::KindTime& kind : rank.kinds) {
      if (kind.lane != "compute") continue;
      const double seconds = static_cast<double>(kind.ns) * per_step;
      const bool updates = kind.kind == "norm" || kind.kind == "update";
      if (kind.kind == "forward") f += seconds;
      if (kind.kind == "recompute" || kind.kind == "backward" || kind.kind == "backward_input")
        b += seconds;
      if (kind.kind == "backward_weight") w += seconds;
      if (updates) o += seconds;
      if (!updates) inside += static_cast<double>(kind.collectives) * per_step;
    }
    forward.push_back(f);
    backward.push_back(b);
    weight.push_back(w);
    optimizer.push_back(o);
    if (analysis.collectives) blocks.push_back(inside);
  }
  result.forward_s = mean(forward);
  result.backward_s = mean(backward);
  result.weight_s = mean(weight);
  // The wait for the last rank is in the norm.
  const double waits = std::isfinite(result.exposed.norm) ? result.exposed.norm : 0;
  result.optimizer_s = std::max(0.0, mean(optimizer) - waits);
  result.exposed.blocks = mean(blocks);
}

void add_ranks(ParallelResult& result, const std::vector<RankMeasure>& ranks) {
  const auto mean_of = [&](double ExposedTime::* part) {
    std::vector<double> values;
    for (const RankMeasure& rank : ranks) values.push_back(rank.exposed.*part);
    return mean(values);
  };
  for (const auto part : {&ExposedTime::gather, &ExposedTime::reduce, &ExposedTime::stages,
                          &ExposedTime::norm, &ExposedTime::input})
    result.exposed.*part = mean_of(part);
  std::vector<double> bubbles;
  for (StageFigures& stage : result.stages) {
    std::vector<double> of_stage;
    for (const RankMeasure& rank : ranks) {
      if (rank.stage != stage.stage) continue;
      stage.peak = std::fmax(stage.peak, rank.peak);
      of_stage.push_back(rank.bubble());
    }
    if (result.stages.size() < 2) continue;
    stage.bubble = mean(of_stage);
    bubbles.push_back(stage.bubble);
  }
  result.bubble = mean(bubbles);
  for (const StageFigures& stage : result.stages)
    result.memory = std::fmax(result.memory, stage.peak);
}

/// The stage that holds most by plan, whose collectives the plan lists.
int fullest_stage(const ParallelResult& result) {
  const auto most = std::ranges::max_element(result.stages, {}, &StageFigures::planned);
  return most == result.stages.end() ? 0 : most->stage;
}

struct MeasuredRun {
  report::RunFigures figures;     ///< over the steps that count
  double lone_step_s = kUnknown;  ///< median
};

/// The run of the middle step time.
std::size_t median_run(const std::vector<MeasuredRun>& runs) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < runs.size(); ++i) order.push_back(i);
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return runs[i].figures.step_s.value; });
  return order[(order.size() - 1) / 2];
}

/// Nothing where the run is no good, and why.
std::optional<MeasuredRun> read_measured(const std::filesystem::path& folder, int warmup, int steps,
                                         std::string& reason) {
  MeasuredRun run;
  const auto count = [&](report::RunData& data) {
    data.warmup = warmup;
    std::vector<double> lone;
    for (const report::StepRow& row : data.steps) {
      if (row.step >= first_lone_step(warmup + steps)) lone.push_back(row.step_s);
    }
    if (!lone.empty()) run.lone_step_s = report::median(std::move(lone));
    std::erase_if(data.steps,
                  [&](const report::StepRow& row) { return row.step > warmup + steps; });
  };
  std::optional<report::RunFigures> figures = read_figures(folder, count, reason);
  if (!figures) return std::nullopt;
  run.figures = std::move(*figures);
  return run;
}

/// Traces of a run of four ranks take a core 5 s and some 100 MiB.
std::size_t reading_threads() {
  constexpr std::size_t kMaxThreads = 8;
  return std::min<std::size_t>(kMaxThreads, (std::thread::hardware_concurrency() + 1) / 2);
}

ParallelResult result_of(const ParallelOptions& options, const ParallelWay& way, std::size_t index,
                         const BenchPlan& plan, const BenchLog& log) {
  ParallelResult result{.way = way, .recipe = recipe_name(plan, way.recipe)};
  std::vector<MeasuredRun> runs;
  for (int repeat = 1; repeat <= plan.repeat; ++repeat) {
    const auto record = log.find(run_name(plan, {.index = index, .repeat = repeat}));
    if (!record) continue;
    std::string reason = record->reason;
    if (reason.empty()) {
      if (auto run = read_measured(log.runs() / record->run, options.warmup, options.steps, reason))
        runs.push_back(std::move(*run));
    }
    if (result.failure.empty()) result.failure = reason;
  }
  result.runs = runs.size();
  if (!runs.empty()) {
    const MeasuredRun& run = runs[median_run(runs)];
    add_plan(result, run.figures.data.plan);
    add_run(result, run.figures, options.steps);
    if (std::isfinite(result.planned_lone_step_s)) result.lone_step_s = run.lone_step_s;
  }
  return result;
}

void add_efficiency(std::vector<ParallelResult>& results, bool ParallelWay::* scaling,
                    double ParallelResult::* efficiency) {
  for (ParallelResult& result : results) {
    if (!(result.way.*scaling) || result.runs == 0) continue;
    const ParallelResult* first = &result;
    for (const ParallelResult& other : results) {
      if (other.way.*scaling && other.runs > 0 && other.way.recipe == result.way.recipe &&
          other.way.ranks < first->way.ranks)
        first = &other;
    }
    result.*efficiency = result.rank_rate() / first->rank_rate();
  }
}

}  // namespace

double ParallelResult::rank_rate() const {
  const double rate = std::isfinite(tokens_per_s) ? tokens_per_s : samples_per_s;
  return rate / way.ranks;
}

void add_plan(ParallelResult& result, const json& plan) {
  if (!plan.is_object()) return;
  const json mesh = child(plan, "mesh");
  std::vector<std::string> axes;
  for (const char* axis : {"pipeline", "tensor", "sequence", "expert", "shard", "data"}) {
    if (number(mesh, axis) > 1) axes.push_back(fmt::format("{} {:.0f}", axis, number(mesh, axis)));
  }
  result.layout = fmt::format("{}, ZeRO {:.0f}",
                              axes.empty() ? "1 rank" : fmt::format("{}", fmt::join(axes, " x ")),
                              number(plan, "zero_stage"));
  result.schedule = report::text(child(plan, "pipeline"), "schedule");
  result.micro = number(child(plan, "batch"), "micro");
  result.micro_batches = number(child(plan, "batch"), "micro_batches");
  result.planned_step_s = number(plan, "step_s");
  result.planned_lone_step_s = number(plan, "step_without_exchanges_s");
  result.planned_memory = number(child(plan, "memory"), "allocated_bytes");
  add_stages(result, plan);
  result.collectives = planned_collectives(plan);
}

void add_run(ParallelResult& result, const report::RunFigures& run, int steps) {
  result.device = run.device;
  result.step_s = run.step_s.value;
  result.samples_per_s = run.samples_per_s.value;
  result.tokens_per_s = run.tokens_per_s;
  result.mfu = run.mfu > 0 ? run.mfu : kUnknown;
  result.loss = run.final_loss;
  const std::vector<RankMeasure> ranks = rank_measures(run.data, steps);
  add_ranks(result, ranks);
  if (run.data.traced) add_traced(result, run.data.traced->analysis);
  const auto counted = std::ranges::find(ranks, fullest_stage(result), &RankMeasure::stage);
  if (counted != ranks.end()) add_counted(result.collectives, run.data, counted->rank);
  if (run.data.traced && run.data.traced->analysis.collectives)
    add_rates(result.collectives, *run.data.traced->analysis.collectives);
}

std::vector<ParallelResult> parallel_results(const ParallelOptions& options,
                                             const std::vector<ParallelWay>& ways,
                                             const BenchPlan& plan, const BenchLog& log) {
  std::vector<ParallelResult> results(ways.size());
  side_by_side(ways.size(), reading_threads(),
               [&](std::size_t i) { results[i] = result_of(options, ways[i], i, plan, log); });
  add_efficiency(results, &ParallelWay::weak, &ParallelResult::weak_efficiency);
  add_efficiency(results, &ParallelWay::strong, &ParallelResult::strong_efficiency);
  return results;
}

}  // namespace dstrain::bench
