#include "engine/report/figure_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "engine/base/median.h"
#include "engine/report/words.h"

namespace dstrain::report {
namespace {

std::vector<double> positive(const Reading& of, double StepRow::*field) {
  std::vector<double> values;
  for (const StepRow* step : of.steady) {
    if (std::isfinite(step->*field) && step->*field > 0) values.push_back(step->*field);
  }
  return values;
}

MemoryRange range_of(const std::vector<double>& values) {
  MemoryRange range;
  range.mean = mean_finite(values);
  for (const double value : values) {
    range.min = std::fmin(range.min, value);
    range.peak = std::fmax(range.peak, value);
  }
  return range;
}

/// A number at "memory.total_bytes" of an object.
double number_at(const nlohmann::json& object, std::string_view place) {
  const std::size_t dot = place.find('.');
  const std::string key(place.substr(0, dot));
  if (dot == std::string_view::npos) return number(object, key.c_str());
  const auto found = object.is_object() ? object.find(key) : object.end();
  return object.is_object() && found != object.end() ? number_at(*found, place.substr(dot + 1))
                                                     : kUnknown;
}

std::string words(Unit unit, double value) {
  switch (unit) {
    case Unit::number:
      return number_words(value);
    case Unit::count:
      return value > 0 ? fmt::format("{:.0f}", value) : "";
    case Unit::share:
      return share_words(value);
    case Unit::per_second:
      return rate_words(value);
    case Unit::seconds:
      return time_words(value);
    case Unit::bytes:
      return bytes_words(value);
    case Unit::mib:
      return bytes_words(value * (1 << 20));
  }
  return {};
}

}  // namespace

double mean_finite(const std::vector<double>& values) {
  double sum = 0;
  double count = 0;
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    sum += value;
    ++count;
  }
  return count == 0 ? kUnknown : sum / count;
}

MemoryRange gpu_memory(std::vector<GpuSample> samples, int gpus,
                       const std::vector<double>& before) {
  for (GpuSample& sample : samples) {
    if (std::cmp_less(sample.index, before.size()))
      sample.memory_mib -= before[static_cast<std::size_t>(sample.index)];
  }
  std::map<int, double> peaks;
  for (const GpuSample& sample : samples) {
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
  for (const GpuSample& sample : samples) {
    if (used.contains(sample.index)) values.push_back(sample.memory_mib);
  }
  return range_of(values);
}

Estimate step_median(const Reading& of, double StepRow::*field) {
  const std::vector<double> values = positive(of, field);
  return {.value = values.empty() ? kUnknown : median(values)};
}

Estimate step_estimate(const Reading& of, double StepRow::*field) {
  const std::vector<double> values = positive(of, field);
  if (values.empty()) return {.value = kUnknown};
  return {.value = median(values), .interval = bootstrap_median(values)};
}

Estimate steps_per_second(const Reading& of) {
  return {.value = 1 / step_median(of, &StepRow::step_s).value};
}

Estimate train_seconds(const Reading& of) {
  double sum = 0;
  for (const StepRow& row : of.run.steps) sum += row.step_s;
  return {.value = of.run.steps.empty() ? kUnknown : sum};
}

Estimate final_loss(const Reading& of) {
  const std::size_t steps = of.run.steps.size();
  std::vector<double> last;
  for (std::size_t i = steps - std::min(steps, std::max<std::size_t>(1, steps / 10)); i < steps;
       ++i)
    last.push_back(of.run.steps[i].loss);
  return {.value = mean_finite(last)};
}

Estimate not_finite_steps(const Reading& of) {
  return {.value = static_cast<double>(std::ranges::count_if(
              of.run.steps, [](const StepRow& row) { return !std::isfinite(row.loss); }))};
}

Estimate skipped_steps(const Reading& of) {
  double max = 0;
  for (const StepRow& row : of.run.steps)
    max = std::fmax(max, std::floor(std::min(row.skipped_steps, 1e15)));
  return {.value = max};
}

Estimate steps_per_epoch(const Reading& of) {
  if (of.run.steps.empty()) return {.value = kUnknown};
  const StepRow& last = of.run.steps.back();
  return {.value =
              last.epoch > 0 ? std::round(static_cast<double>(last.step) / last.epoch) : kUnknown};
}

Estimate last_evaluation(const Reading& of, double EvaluationRow::*field) {
  return {.value = of.run.evaluations.empty() ? kUnknown : of.run.evaluations.back().*field};
}

Estimate evaluation_rate(const Reading& of) {
  double samples = 0, seconds = 0;
  for (const EvaluationRow& row : of.run.evaluations) {
    if (!std::isfinite(row.samples) || !(row.seconds > 0)) continue;
    samples += row.samples;
    seconds += row.seconds;
  }
  return {.value = seconds > 0 ? samples / seconds : kUnknown};
}

Estimate max_memory(const Reading& of, double StepRow::*field, double TimingRow::*timing) {
  double max = kUnknown;
  for (const StepRow& row : of.run.steps) {
    if (row.*field > 0) max = std::fmax(max, row.*field);
  }
  for (const RankTimings& rank : of.run.ranks) {
    for (const TimingRow& row : rank.rows) {
      if (row.*timing > 0) max = std::fmax(max, row.*timing);
    }
  }
  return {.value = max};
}

Estimate exposed_share(const Reading& of) {
  double exposed = 0, all = 0;
  for (const RankTimings& rank : of.run.ranks) {
    for (const TimingRow& row : rank.rows) {
      if (row.traced || row.step <= of.run.warmup.value_or(0)) continue;
      exposed += row.exposed_comm_s;
      all += row.step_s;
    }
  }
  return {.value = all > 0 ? exposed / all : kUnknown};
}

Estimate planned_on_host(const Reading& of) {
  return {.value = of.ranks * (number_at(of.run.plan, "memory.host_pinned_bytes") +
                               number_at(of.run.plan, "memory.host_pageable_bytes"))};
}

Reading reading_of(const RunData& run, const std::vector<const StepRow*>& steady, int ranks,
                   bool on_cpu) {
  Reading of = {.run = run, .steady = steady, .ranks = ranks};
  of.gpu = gpu_memory(run.gpus, ranks);
  if (!on_cpu && !run.gpus_before_mib.empty())
    of.gpu_added = gpu_memory(run.gpus, ranks, run.gpus_before_mib);
  std::vector<double> resident;
  for (const CpuSample& sample : run.cpu) resident.push_back(sample.resident_mib);
  of.cpu = range_of(resident);
  return of;
}

Figures read_figures(const Reading& of) {
  Figures figures;
  for (std::size_t row = 0; row < kFigureCount; ++row) {
    const Figure& figure = kFigures[row];
    if (figure.read != nullptr)
      figures.at(row) = figure.read(of);
    else if (!figure.plan.empty())
      figures.at(row).value = number_at(of.run.plan, figure.plan);
  }
  return figures;
}

std::string figure_words(const Figure& figure, const Estimate& value) {
  if (!value.interval) return words(figure.unit, value.value);
  return fmt::format("{} [{}, {}]", words(figure.unit, value.value),
                     words(figure.unit, value.interval->low),
                     words(figure.unit, value.interval->high));
}

}  // namespace dstrain::report
