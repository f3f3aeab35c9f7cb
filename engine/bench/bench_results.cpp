#include "engine/bench/bench_results.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/base/error.h"
#include "engine/bench/tables.h"
#include "engine/recipe/datasets.h"
#include "engine/recipe/load.h"

namespace dstrain::bench {
namespace {

using report::RunFigures;

constexpr FieldColumn kColumns[] = {
    {"evaluation_accuracy", "evaluation_accuracy"},
    {"steps_per_s", "steps_per_s"},
    {"samples_per_s", "samples_per_s"},
    {"tokens_per_s", "tokens_per_s"},
    {"evaluation_samples_per_s", "evaluation_samples_per_s"},
    {"steps_per_epoch", "steps_per_epoch"},
    {"seconds", "program_seconds"},
    {"train_seconds", "train_seconds"},
    {"gpu_mib.min", "gpu_min"},
    {"gpu_mib.mean", "gpu_mean"},
    {"gpu_mib.peak", "gpu_peak"},
    {"gpu_added_mib.min", "gpu_added_min"},
    {"gpu_added_mib.mean", "gpu_added_mean"},
    {"gpu_added_mib.peak", "gpu_added_peak"},
    {"cpu_mib.min", "cpu_min"},
    {"cpu_mib.mean", "cpu_mean"},
    {"cpu_mib.peak", "cpu_peak"},
    {"memory_peak_bytes", "memory_peak"},
    {"memory_planned_bytes", "memory_planned"},
    {"device_planned_bytes", "device_planned"},
    {"host_planned_bytes", "host_planned"},
    {"planned_step_s", "planned_step_s"},
};

/// Medians of what is known.
void fill(CaseResult& result, const std::vector<RunFigures>& all,
          const std::vector<std::size_t>& runs) {
  result.runs = runs.size();
  if (runs.empty()) return;
  const RunFigures& first = all[runs.front()];
  result.model = report::text(first.data.plan, "model");
  result.device = first.device;
  for (const report::EvaluationRow& row : first.data.evaluations)
    result.evaluation_losses.push_back(row.loss);
  for (std::size_t row = 0; row < report::kFigureCount; ++row) {
    std::vector<double> known;
    for (const std::size_t run : runs) {
      const double value = all[run].figures.at(row).value;
      if (std::isfinite(value)) known.push_back(value);
    }
    if (!known.empty()) result.figures.at(row).value = report::median(std::move(known));
  }
  result.figures["step_s"] = first.figures["step_s"];
}

/// Figures of the run in a folder; nothing where it is no good, and why.
std::optional<RunFigures> read_run_figures(const std::filesystem::path& folder,
                                           const Record& record, int ranks,
                                           const std::function<void(report::RunData&)>& count,
                                           std::string& reason) {
  try {
    report::RunData data = report::read_run(folder);
    data.program_s = record.seconds;
    data.gpus_before_mib = record.gpus_before_mib;
    count(data);
    RunFigures figures = report::run_figures(std::move(data), ranks);
    const double not_finite = figures.figures.value("not_finite");
    if (not_finite == 0) return figures;
    reason = fmt::format("the loss of {:.0f} steps is not finite", not_finite);
  } catch (const Error& error) {
    reason = error.what();
  }
  return std::nullopt;
}

}  // namespace

CaseRuns read_case(const BenchPlan& plan, const BenchLog& log, std::size_t index,
                   const std::function<void(report::RunData&)>& count) {
  CaseRuns all;
  const int ranks = cases(plan).at(index).ranks;
  for (int repeat = 1; repeat <= plan.repeat; ++repeat) {
    const auto record = log.find(run_name(plan, {.index = index, .repeat = repeat}));
    if (!record) continue;
    std::string reason = record->reason;
    if (reason.empty()) {
      if (auto run = read_run_figures(log.runs() / record->run, *record, ranks, count, reason))
        all.runs.push_back(std::move(*run));
    }
    if (all.failure.empty()) all.failure = reason;
  }
  return all;
}

CaseResult named_result(const BenchPlan& plan, std::size_t index) {
  const Case which = cases(plan).at(index);
  CaseResult result{.which = which,
                    .recipe = recipe_name(plan, which.recipe),
                    .variant = plan.variants[which.variant].name};
  try {
    const Recipe recipe = load_recipe(plan.recipes[which.recipe], plan.overrides).recipe;
    result.model = recipe.model.name;
    result.data = dataset_row(recipe.data.name).spelling;
  } catch (const std::exception&) {
    // Its runs have failed by that and say so.
  }
  return result;
}

void add_planned(CaseResult& result, const nlohmann::json& plan) {
  report::RunData run;
  run.plan = plan;
  result.figures = report::run_figures(std::move(run), result.which.ranks).figures;
}

std::vector<CaseResult> bench_results(const BenchPlan& plan, const BenchLog& log) {
  const std::vector<Case> list = cases(plan);
  std::vector<CaseResult> results;
  std::vector<RunFigures> runs;
  std::vector<std::vector<std::size_t>> runs_of(list.size());
  const auto count = [&](report::RunData& data) {
    if (plan.steps > 0)
      data.warmup = plan.warmup;
    else
      data.warmup.reset();
  };
  for (std::size_t c = 0; c < list.size(); ++c) {
    CaseResult result = named_result(plan, c);
    CaseRuns read = read_case(plan, log, c, count);
    result.failure = read.failure;
    for (RunFigures& run : read.runs) {
      runs_of[c].push_back(runs.size());
      runs.push_back(std::move(run));
    }
    fill(result, runs, runs_of[c]);
    results.push_back(std::move(result));
  }
  for (std::size_t c = 0; c < list.size(); ++c) {
    CaseResult& result = results[c];
    if (runs_of[c].empty()) continue;
    const auto base = std::ranges::find_if(list, [&](const Case& one) {
      return one.recipe == list[c].recipe && one.ranks == list[c].ranks;
    });
    const report::Variant compared =
        report::compare(runs, runs_of[static_cast<std::size_t>(base - list.begin())], runs_of[c]);
    result.speed = compared.speed;
    result.verdict = compared.verdict;
    const int first_ranks = plan.ranks.front();
    const auto one = std::ranges::find(
        list, Case{.recipe = list[c].recipe, .variant = list[c].variant, .ranks = first_ranks});
    if (plan.scaling != Scaling::none && one != list.end()) {
      const CaseResult& start = results[static_cast<std::size_t>(one - list.begin())];
      // Beside that of n ranks that are as fast as the first ones.
      result.figures["efficiency"].value =
          result.value("samples_per_s") /
          (start.value("samples_per_s") * list[c].ranks / first_ranks);
    }
  }
  return results;
}

nlohmann::ordered_json results_json(const std::vector<CaseResult>& results) {
  auto rows = nlohmann::ordered_json::array();
  for (const CaseResult& r : results) {
    auto losses = nlohmann::ordered_json::array();
    for (const double loss : r.evaluation_losses) losses.push_back(number_json(loss));
    std::vector<Field> row = {{"recipe", r.recipe},
                              {"variant", r.variant},
                              {"ranks", r.which.ranks},
                              {"model", r.model},
                              {"data", r.data},
                              {"device", r.device},
                              {"runs", r.runs},
                              {"failure", r.failure},
                              {"loss", number_json(r.value("final_loss"))},
                              {"evaluation_losses", losses}};
    add_fields(row, r.figures, kColumns);
    row.insert(row.end(), {{"step_s", estimate_json(r.figures["step_s"])},
                           {"mfu", number_json(r.value("mfu"))},
                           {"exposed_comm_share", number_json(r.value("exposed_comm_share"))},
                           {"speed", estimate_json(r.speed)},
                           {"verdict", r.verdict},
                           {"efficiency", number_json(r.value("efficiency"))}});
    rows.push_back(fields_json(row));
  }
  return rows;
}

}  // namespace dstrain::bench
