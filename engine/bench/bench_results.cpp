#include "engine/bench/bench_results.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "engine/base/error.h"
#include "engine/base/json.h"
#include "engine/recipe/datasets.h"
#include "engine/recipe/load.h"

namespace dstrain::bench {
namespace {

using report::RunFigures;

double median_of(const std::vector<double>& values) {
  std::vector<double> known;
  for (const double value : values) {
    if (std::isfinite(value)) known.push_back(value);
  }
  return known.empty() ? kUnknown : report::median(known);
}

template <class Figure>
double median_of(const std::vector<const RunFigures*>& runs, const Figure& figure) {
  std::vector<double> values;
  for (const RunFigures* run : runs) values.push_back(figure(*run));
  return median_of(values);
}

MemoryRange range_of(const std::vector<double>& values) {
  MemoryRange range;
  double sum = 0, count = 0;
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    range.min = std::fmin(range.min, value);
    range.peak = std::fmax(range.peak, value);
    sum += value;
    ++count;
  }
  if (count > 0) range.mean = sum / count;
  return range;
}

MemoryRange cpu_memory(const std::vector<report::CpuSample>& samples) {
  std::vector<double> values;
  for (const report::CpuSample& sample : samples) values.push_back(sample.resident_mib);
  return range_of(values);
}

MemoryRange median_range(const std::vector<MemoryRange>& ranges) {
  std::vector<double> min, mean, peak;
  for (const MemoryRange& range : ranges) {
    min.push_back(range.min);
    mean.push_back(range.mean);
    peak.push_back(range.peak);
  }
  return {.min = median_of(min), .mean = median_of(mean), .peak = median_of(peak)};
}

double train_seconds(const RunFigures& run) {
  double sum = 0;
  for (const report::StepRow& row : run.data.steps) sum += row.step_s;
  return run.data.steps.empty() ? kUnknown : sum;
}

/// Bytes under a key of the plan's memory.
double planned_memory(const RunFigures& run, const char* key) {
  if (!run.data.plan.is_object() || !run.data.plan.contains("memory")) return kUnknown;
  return report::number(run.data.plan["memory"], key);
}

double steps_per_epoch(const RunFigures& run) {
  if (run.data.steps.empty()) return kUnknown;
  const report::StepRow& last = run.data.steps.back();
  return last.epoch > 0 ? std::round(static_cast<double>(last.step) / last.epoch) : kUnknown;
}

double evaluation_rate(const RunFigures& run) {
  double samples = 0, seconds = 0;
  for (const report::EvaluationRow& row : run.data.evaluations) {
    if (!std::isfinite(row.samples) || !(row.seconds > 0)) continue;
    samples += row.samples;
    seconds += row.seconds;
  }
  return seconds > 0 ? samples / seconds : kUnknown;
}

double exposed_share(const RunFigures& run) {
  double exposed = 0, all = 0;
  for (const report::RankTimings& rank : run.data.ranks) {
    for (const report::TimingRow& row : rank.rows) {
      if (row.traced || row.step <= run.data.warmup.value_or(0)) continue;
      exposed += row.exposed_comm_s;
      all += row.step_s;
    }
  }
  return all > 0 ? exposed / all : kUnknown;
}

/// So that a case without a run has its names, too.
void describe_recipe(const BenchPlan& plan, CaseResult& result) {
  try {
    const Recipe recipe = load_recipe(plan.recipes[result.which.recipe], plan.overrides).recipe;
    result.model = recipe.model.name;
    result.data = dataset_row(recipe.data.name).spelling;
  } catch (const std::exception&) {
    // Its runs have failed by that and say so.
  }
}

/// `before`: of each run, MiB that each GPU held.
void fill(CaseResult& result, const std::vector<const RunFigures*>& runs,
          const std::vector<std::vector<double>>& before) {
  result.runs = runs.size();
  if (runs.empty()) return;
  const RunFigures& first = *runs.front();
  result.model = report::text(first.data.plan, "model");
  result.device = first.device;
  result.loss = median_of(runs, [](const RunFigures& run) { return run.final_loss; });
  for (const report::EvaluationRow& row : first.data.evaluations)
    result.evaluation_losses.push_back(row.loss);
  result.evaluation_accuracy = median_of(runs, [](const RunFigures& run) {
    return run.data.evaluations.empty() ? kUnknown : run.data.evaluations.back().accuracy;
  });
  result.samples_per_s =
      median_of(runs, [](const RunFigures& run) { return run.samples_per_s.value; });
  result.tokens_per_s = median_of(runs, [](const RunFigures& run) { return run.tokens_per_s; });
  result.steps_per_s = median_of(runs, [](const RunFigures& run) { return 1 / run.step_s.value; });
  result.evaluation_samples_per_s = median_of(runs, evaluation_rate);
  result.steps_per_epoch = steps_per_epoch(first);
  std::vector<MemoryRange> gpu, added, cpu;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    gpu.push_back(gpu_memory(runs[i]->data.gpus, result.which.ranks));
    if (!before[i].empty() && first.device != "CPU")
      added.push_back(gpu_memory(runs[i]->data.gpus, result.which.ranks, before[i]));
    cpu.push_back(cpu_memory(runs[i]->data.cpu));
  }
  result.train_seconds = median_of(runs, train_seconds);
  result.device_planned = planned_memory(first, "total_bytes");
  result.host_planned = result.which.ranks * (planned_memory(first, "host_pinned_bytes") +
                                              planned_memory(first, "host_pageable_bytes"));
  result.planned_step_s = first.planned_step_s;
  result.gpu = median_range(gpu);
  result.gpu_added = median_range(added);
  result.cpu = median_range(cpu);
  result.memory_peak = median_of(runs, [](const RunFigures& run) { return run.memory_peak; });
  result.memory_planned = first.memory_planned;
  result.step_s = first.step_s;
  result.mfu = median_of(runs, [](const RunFigures& run) { return run.mfu; });
  result.exposed_comm_share = median_of(runs, exposed_share);
}

}  // namespace

MemoryRange gpu_memory(std::vector<report::GpuSample> samples, int gpus,
                       const std::vector<double>& before) {
  for (report::GpuSample& sample : samples) {
    if (std::cmp_less(sample.index, before.size()))
      sample.memory_mib -= before[static_cast<std::size_t>(sample.index)];
  }
  std::map<int, double> peaks;
  for (const report::GpuSample& sample : samples) {
    double& peak = peaks.emplace(sample.index, 0).first->second;
    peak = std::fmax(peak, sample.memory_mib);
  }
  std::vector<std::pair<double, int>> order;
  for (const auto& [index, peak] : peaks) order.emplace_back(-peak, index);
  std::ranges::sort(order);
  std::set<int> used;
  for (std::size_t i = 0; i < order.size() && std::cmp_less(i, gpus); ++i)
    used.insert(order[i].second);
  std::vector<double> values;
  for (const report::GpuSample& sample : samples) {
    if (used.contains(sample.index)) values.push_back(sample.memory_mib);
  }
  return range_of(values);
}

std::optional<RunFigures> read_figures(const std::filesystem::path& folder,
                                       const std::function<void(report::RunData&)>& count,
                                       std::string& reason) {
  try {
    report::RunData data = report::read_run(folder);
    count(data);
    RunFigures figures = report::run_figures(std::move(data));
    if (figures.not_finite == 0) return figures;
    reason = fmt::format("the loss of {} steps is not finite", figures.not_finite);
  } catch (const Error& error) {
    reason = error.what();
  }
  return std::nullopt;
}

std::vector<CaseResult> bench_results(const BenchPlan& plan, const BenchLog& log) {
  const std::vector<Case> list = cases(plan);
  std::vector<CaseResult> results;
  std::vector<RunFigures> runs;
  std::vector<std::vector<std::size_t>> runs_of(list.size());
  std::vector<std::vector<double>> before;  // of each of `runs`
  for (std::size_t c = 0; c < list.size(); ++c) {
    CaseResult result{.which = list[c],
                      .recipe = recipe_name(plan, list[c].recipe),
                      .variant = plan.variants[list[c].variant].name};
    describe_recipe(plan, result);
    std::vector<double> seconds;
    for (int repeat = 1; repeat <= plan.repeat; ++repeat) {
      const auto record = log.find(run_name(plan, {.index = c, .repeat = repeat}));
      if (!record) continue;
      std::string reason = record->reason;
      if (reason.empty()) {
        const auto count = [&](report::RunData& data) {
          if (plan.steps > 0)
            data.warmup = plan.warmup;
          else
            data.warmup.reset();
        };
        if (auto figures = read_figures(log.runs() / record->run, count, reason)) {
          runs_of[c].push_back(runs.size());
          runs.push_back(std::move(*figures));
          before.push_back(record->gpus_before_mib);
          seconds.push_back(record->seconds);
        }
      }
      if (result.failure.empty()) result.failure = reason;
    }
    result.seconds = median_of(seconds);
    results.push_back(std::move(result));
  }
  for (std::size_t c = 0; c < list.size(); ++c) {
    std::vector<const RunFigures*> own;
    std::vector<std::vector<double>> own_before;
    for (const std::size_t run : runs_of[c]) {
      own.push_back(&runs[run]);
      own_before.push_back(before[run]);
    }
    fill(results[c], own, own_before);
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
      result.efficiency =
          result.samples_per_s / (start.samples_per_s * list[c].ranks / first_ranks);
    }
  }
  return results;
}

nlohmann::ordered_json results_json(const std::vector<CaseResult>& results) {
  auto rows = nlohmann::ordered_json::array();
  const auto number = [](double value) {
    return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
  };
  const auto range = [&](const MemoryRange& memory) {
    return nlohmann::ordered_json{
        {"min", number(memory.min)}, {"mean", number(memory.mean)}, {"peak", number(memory.peak)}};
  };
  const auto estimate = [&](const report::Estimate& of) {
    nlohmann::ordered_json json = {{"value", number(of.value)}};
    json["interval"] = of.interval ? nlohmann::ordered_json{of.interval->low, of.interval->high}
                                   : nlohmann::ordered_json();
    return json;
  };
  for (const CaseResult& r : results) {
    auto losses = nlohmann::ordered_json::array();
    for (const double loss : r.evaluation_losses) losses.push_back(number(loss));
    rows.push_back({{"recipe", r.recipe},
                    {"variant", r.variant},
                    {"ranks", r.which.ranks},
                    {"model", r.model},
                    {"data", r.data},
                    {"device", r.device},
                    {"runs", r.runs},
                    {"failure", r.failure},
                    {"loss", number(r.loss)},
                    {"evaluation_losses", losses},
                    {"evaluation_accuracy", number(r.evaluation_accuracy)},
                    {"steps_per_s", number(r.steps_per_s)},
                    {"samples_per_s", number(r.samples_per_s)},
                    {"tokens_per_s", number(r.tokens_per_s)},
                    {"evaluation_samples_per_s", number(r.evaluation_samples_per_s)},
                    {"steps_per_epoch", number(r.steps_per_epoch)},
                    {"seconds", number(r.seconds)},
                    {"train_seconds", number(r.train_seconds)},
                    {"gpu_mib", range(r.gpu)},
                    {"gpu_added_mib", range(r.gpu_added)},
                    {"cpu_mib", range(r.cpu)},
                    {"memory_peak_bytes", number(r.memory_peak)},
                    {"memory_planned_bytes", number(r.memory_planned)},
                    {"device_planned_bytes", number(r.device_planned)},
                    {"host_planned_bytes", number(r.host_planned)},
                    {"planned_step_s", number(r.planned_step_s)},
                    {"step_s", estimate(r.step_s)},
                    {"mfu", number(r.mfu)},
                    {"exposed_comm_share", number(r.exposed_comm_share)},
                    {"speed", estimate(r.speed)},
                    {"verdict", r.verdict},
                    {"efficiency", number(r.efficiency)}});
  }
  return rows;
}

}  // namespace dstrain::bench
