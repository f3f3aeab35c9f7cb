#include "engine/bench/parallel_results.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "engine/bench/parallel_collectives.h"
#include "engine/bench/parallel_plan.h"
#include "engine/bench/parallel_ranks.h"
#include "engine/mesh/mesh.h"
#include "engine/recipe/axes.h"
#include "engine/report/statistics.h"

namespace dstrain::bench {
namespace {

using nlohmann::json;
using report::mean_finite;
using report::number;

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

void add_stages(CaseResult& result, const json& plan) {
  const json stages = child(child(plan, "pipeline"), "stages");
  if (!stages.is_array() || stages.empty()) {
    result.stages = {{.stage = 0, .planned = result.value("memory_planned")}};
    return;
  }
  result.stages.clear();
  std::vector<double> bubbles;
  for (const json& stage : stages) {
    bubbles.push_back(number(stage, "bubble_s") / result.value("planned_step_s"));
    result.stages.push_back({.stage = static_cast<int>(result.stages.size()),
                             .blocks = chunk_words(child(stage, "blocks")),
                             .planned = number(stage, "allocated_bytes"),
                             .planned_bubble = bubbles.back()});
  }
  result.figures["planned_bubble"].value = mean_finite(bubbles);
}

/// Time of the compute lane by kind of action, mean of the traced ranks.
void add_traced(CaseResult& result, const trace::Analysis& analysis) {
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
  report::Figures& figures = result.figures;
  figures["forward_s"].value = mean_finite(forward);
  figures["backward_s"].value = mean_finite(backward);
  figures["weight_s"].value = mean_finite(weight);
  // The wait for the last rank is in the norm.
  const double norm = figures.value("exposed_norm_s");
  figures["optimizer_s"].value =
      std::max(0.0, mean_finite(optimizer) - (std::isfinite(norm) ? norm : 0));
  figures["exposed_blocks_s"].value = mean_finite(blocks);
}

void add_ranks(CaseResult& result, const std::vector<RankMeasure>& ranks) {
  report::Figures& figures = result.figures;
  for (const ExposedPart& part : kExposedParts) {
    std::vector<double> values;
    for (const RankMeasure& rank : ranks) values.push_back(rank.exposed.*part.seconds);
    figures[part.figure].value = mean_finite(values);
  }
  std::vector<double> bubbles;
  for (StageFigures& stage : result.stages) {
    std::vector<double> of_stage;
    for (const RankMeasure& rank : ranks) {
      if (rank.stage != stage.stage) continue;
      stage.peak = std::fmax(stage.peak, rank.peak);
      of_stage.push_back(rank.bubble());
    }
    if (result.stages.size() < 2) continue;
    stage.bubble = mean_finite(of_stage);
    bubbles.push_back(stage.bubble);
  }
  figures["bubble"].value = mean_finite(bubbles);
  double& peak = figures["peak_bytes"].value;
  for (const StageFigures& stage : result.stages) peak = std::fmax(peak, stage.peak);
}

/// The stage that holds most by plan, whose collectives the plan lists.
int fullest_stage(const CaseResult& result) {
  const auto max = std::ranges::max_element(result.stages, {}, &StageFigures::planned);
  return max == result.stages.end() ? 0 : max->stage;
}

/// The run of the middle step time.
const report::RunFigures& median_run(const BenchResults& results, std::size_t index) {
  std::vector<std::size_t> order = results.runs_of(index);
  std::ranges::stable_sort(
      order, {}, [&](std::size_t run) { return results.runs[run].figures.value("step_s"); });
  return results.runs[order[(order.size() - 1) / 2]];
}

/// Beside the fewest ranks that ran.
void add_efficiency(std::vector<CaseResult>& results, bool Case::*scaling,
                    report::FigureKey efficiency) {
  for (CaseResult& result : results) {
    if (!(result.which.*scaling) || !result.ran()) continue;
    const CaseResult* first = &result;
    for (const CaseResult& other : results) {
      if (other.which.*scaling && other.ran() && other.which.recipe == result.which.recipe &&
          other.which.ranks < first->which.ranks)
        first = &other;
    }
    result.figures[efficiency].value =
        result.value("rate_per_rank") / first->value("rate_per_rank");
  }
}

}  // namespace

void add_layout(CaseResult& result) {
  const json& plan = result.plan;
  if (!plan.is_object()) return;
  const json mesh = child(plan, "mesh");
  std::vector<std::string> axes;
  const auto add = [&](Axis axis) {
    const double degree = number(mesh, axis_name(axis));
    if (degree > 1) axes.push_back(fmt::format("{} {:.0f}", axis_name(axis), degree));
  };
  for (const AxisKey& key : kAxisKeys) add(key.axis);
  add(Axis::shard);
  add(Axis::data);
  result.layout = fmt::format("{}, ZeRO {:.0f}",
                              axes.empty() ? "1 rank" : fmt::format("{}", fmt::join(axes, " x ")),
                              number(plan, "zero_stage"));
  result.schedule = report::text(child(plan, "pipeline"), "schedule");
  report::Figures& figures = result.figures;
  figures["planned_exchange_s"].value =
      figures.value("planned_step_s") - figures.value("planned_lone_step_s");
  add_stages(result, plan);
  result.collectives = planned_collectives(plan);
}

void add_run(CaseResult& result, const report::RunFigures& run, int steps) {
  report::Figures& figures = result.figures;
  for (std::size_t row = 0; row < report::kFigureCount; ++row) {
    if (std::isfinite(run.figures.at(row).value)) figures.at(row) = run.figures.at(row);
  }
  const double tokens = figures.value("tokens_per_s");
  figures["rate_per_rank"].value =
      (std::isfinite(tokens) ? tokens : figures.value("samples_per_s")) / result.which.ranks;
  const std::vector<RankMeasure> ranks = rank_measures(run.data, steps);
  add_ranks(result, ranks);
  if (std::isfinite(figures.value("planned_lone_step_s"))) {
    figures["exchange_s"].value = figures.value("step_s") - figures.value("lone_step_s");
    figures["contention_s"].value = figures.value("exchange_s") -
                                    figures.value("exposed_gather_s") -
                                    figures.value("exposed_reduce_s");
  }
  if (run.data.traced) add_traced(result, run.data.traced->analysis);
  const auto counted = std::ranges::find(ranks, fullest_stage(result), &RankMeasure::stage);
  if (counted != ranks.end()) add_counted(result.collectives, run.data, counted->rank);
  if (run.data.traced && run.data.traced->analysis.collectives)
    add_rates(result.collectives, *run.data.traced->analysis.collectives);
}

void add_layouts(BenchResults& results, int steps) {
  for (std::size_t i = 0; i < results.cases.size(); ++i) {
    CaseResult& result = results.cases[i];
    add_layout(result);
    if (result.ran()) add_run(result, median_run(results, i), steps);
  }
  add_efficiency(results.cases, &Case::weak, "weak_efficiency");
  add_efficiency(results.cases, &Case::strong, "strong_efficiency");
}

}  // namespace dstrain::bench
