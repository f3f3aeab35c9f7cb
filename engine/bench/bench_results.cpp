#include "engine/bench/bench_results.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <thread>
#include <tuple>

#include "engine/base/error.h"
#include "engine/base/median.h"
#include "engine/base/side_by_side.h"
#include "engine/bench/parallel_plan.h"
#include "engine/recipe/datasets.h"
#include "engine/recipe/load.h"

namespace dstrain::bench {
namespace {

using report::RunFigures;

/// Leaves in a run the steps that count. Those without exchanges are behind them.
double take_tail(const BenchPlan& plan, report::RunData& run) {
  run.warmup.reset();
  if (plan.steps == 0) return kUnknown;
  run.warmup = plan.warmup;
  if (plan.tail == 0) return kUnknown;
  const int last = plan.warmup + plan.steps;
  std::vector<double> lone;
  for (const report::StepRow& row : run.steps) {
    if (row.step >= first_lone_step(last)) lone.push_back(row.step_s);
  }
  std::erase_if(run.steps, [&](const report::StepRow& row) { return row.step > last; });
  return lone.empty() ? kUnknown : median(std::move(lone));
}

/// Figures of the run in a folder; nothing where it is no good, and why.
std::optional<RunFigures> read_run_figures(const BenchPlan& plan,
                                           const std::filesystem::path& folder,
                                           const Record& record, int ranks, std::string& reason) {
  try {
    report::RunData data = report::read_run(folder);
    data.program_s = record.seconds;
    data.gpus_before_mib = record.gpus_before_mib;
    const double lone_step_s = take_tail(plan, data);
    RunFigures run = report::run_figures(std::move(data), ranks);
    run.figures["lone_step_s"].value = lone_step_s;
    const double not_finite = run.figures.value("not_finite");
    if (not_finite == 0) return run;
    reason = fmt::format("the loss of {:.0f} steps is not finite", not_finite);
  } catch (const Error& error) {
    reason = error.what();
  }
  return std::nullopt;
}

/// Repeats of a case that ended well. `failure`: why one did not.
std::vector<RunFigures> read_case(const BenchPlan& plan, const BenchLog& log, std::size_t index,
                                  std::string& failure) {
  std::vector<RunFigures> runs;
  for (int repeat = 1; repeat <= plan.repeat; ++repeat) {
    const auto record = log.find(run_name(plan, {.index = index, .repeat = repeat}));
    if (!record) continue;
    std::string reason = record->reason;
    if (reason.empty()) {
      const int ranks = plan.cases[index].ranks;
      if (auto run = read_run_figures(plan, log.runs() / record->run, *record, ranks, reason))
        runs.push_back(std::move(*run));
    }
    if (failure.empty()) failure = reason;
  }
  return runs;
}

/// Takes medians of what is known.
void add_runs(CaseResult& result, const std::vector<RunFigures>& runs) {
  const RunFigures& first = runs.front();
  result.runs = runs.size();
  result.plan = first.data.plan;
  result.model = report::text(first.data.plan, "model");
  result.device = first.device;
  for (const report::EvaluationRow& row : first.data.evaluations)
    result.evaluation_losses.push_back(row.loss);
  for (std::size_t row = 0; row < report::kFigureCount; ++row) {
    std::vector<double> known;
    for (const RunFigures& run : runs) {
      const double value = run.figures.at(row).value;
      if (std::isfinite(value)) known.push_back(value);
    }
    if (!known.empty()) result.figures.at(row).value = median(std::move(known));
  }
  result.figures["step_s"] = first.figures["step_s"];
}

bool same_series(const Case& a, const Case& b) { return a.recipe == b.recipe && a.weak == b.weak; }

/// Takes what is known beside other cases.
void compare_cases(BenchResults& all) {
  for (std::size_t i = 0; i < all.cases.size(); ++i) {
    CaseResult& result = all.cases[i];
    const Case& which = result.which;
    if (!result.ran()) continue;
    const auto base = std::ranges::find_if(all.cases, [&](const CaseResult& other) {
      return same_series(other.which, which) && other.which.ranks == which.ranks;
    });
    if (base->ran()) {
      const report::Variant compared =
          report::compare(all.runs, all.runs_of(static_cast<std::size_t>(base - all.cases.begin())),
                          all.runs_of(i));
      result.speed = compared.speed;
      result.verdict = compared.verdict;
    } else {
      result.verdict = "the first configuration has no run to compare with";
    }
    const auto start = std::ranges::find_if(all.cases, [&](const CaseResult& other) {
      return same_series(other.which, which) && other.which.name == which.name &&
             other.which.ranks == which.first_ranks;
    });
    if (start == all.cases.end()) continue;
    // Beside that of n ranks that are as fast as the first ones.
    result.figures["efficiency"].value =
        result.value("samples_per_s") /
        (start->value("samples_per_s") * which.ranks / which.first_ranks);
  }
}

/// Traces of a run of four ranks take a core 5 s and some 100 MiB.
std::size_t reading_threads() {
  constexpr std::size_t kMaxThreads = 8;
  return std::min<std::size_t>(kMaxThreads, (std::thread::hardware_concurrency() + 1) / 2);
}

}  // namespace

void add_planned(CaseResult& result, const CellPlan& planned) {
  if (!planned.refusal.empty()) result.failure = planned.refusal;
  result.plan = planned.plan;
  report::RunData run;
  run.plan = planned.plan;
  result.figures = report::run_figures(std::move(run), result.which.ranks).figures;
}

std::vector<std::size_t> BenchResults::runs_of(std::size_t index) const {
  std::size_t first = 0;
  for (std::size_t i = 0; i < index; ++i) first += cases[i].runs;
  std::vector<std::size_t> list(cases.at(index).runs);
  std::iota(list.begin(), list.end(), first);
  return list;
}

BenchResults bench_results(const BenchPlan& plan, const BenchLog& log,
                           const std::function<CellPlan(std::size_t)>& planned) {
  BenchResults all{.cases = std::vector<CaseResult>(plan.cases.size()), .runs = {}};
  std::vector<std::vector<RunFigures>> read(plan.cases.size());
  side_by_side(read.size(), reading_threads(),
               [&](std::size_t i) { read[i] = read_case(plan, log, i, all.cases[i].failure); });
  std::map<std::size_t, std::pair<std::string, std::string>> recipes;  // model and data
  for (std::size_t recipe = 0; recipe < plan.recipes.size(); ++recipe) {
    try {
      const Recipe loaded = load_recipe(plan.recipes[recipe], plan.overrides).recipe;
      recipes[recipe] = {loaded.model.name, std::string(dataset_row(loaded.data.name).spelling)};
    } catch (const std::exception&) {
      // Its runs have failed by that and say so.
    }
  }
  for (std::size_t i = 0; i < read.size(); ++i) {
    CaseResult& result = all.cases[i];
    result.which = plan.cases[i];
    result.recipe = recipe_name(plan, result.which.recipe);
    std::tie(result.model, result.data) = recipes[result.which.recipe];
    if (!read[i].empty())
      add_runs(result, read[i]);
    else if (planned)
      add_planned(result, planned(i));
    std::ranges::move(read[i], std::back_inserter(all.runs));
  }
  compare_cases(all);
  return all;
}

}  // namespace dstrain::bench
