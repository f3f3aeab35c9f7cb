#include "engine/report/figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "engine/report/words.h"

namespace dstrain::report {
namespace {

constexpr double kSilent = 0.02;  // of a step; less is not worth a sentence

double& at(RankSplit& split, Part part) { return split.parts[static_cast<std::size_t>(part)]; }

/// Waits lie inside forward and backward, but for those that norm and update say.
RankSplit split_step(const TimingRow& row) {
  RankSplit split = {.rank = 0, .step_s = row.step_s, .parts = {}};
  const double waits = row.wait_copy_in_s + row.wait_gather_s + row.wait_reduce_s +
                       row.wait_receive_s + row.wait_send_s;
  at(split, Part::input) = row.wait_copy_in_s;
  at(split, Part::gather) = row.wait_gather_s;
  at(split, Part::reduce) = row.wait_reduce_s;
  at(split, Part::receive) = row.wait_receive_s + row.wait_send_s;
  at(split, Part::norm) = std::max(0.0, row.norm_s - row.waits_in_norm_s);
  at(split, Part::update) = std::max(0.0, row.update_s - row.waits_in_update_s);
  const double later = row.waits_in_norm_s + row.waits_in_update_s;
  at(split, Part::compute) =
      std::max(0.0, row.forward_s + row.backward_s - std::max(0.0, waits - later));
  double sum = 0;
  for (const double part : split.parts) sum += part;
  at(split, Part::other) = std::max(0.0, row.step_s - sum);
  return split;
}

std::set<std::int64_t> disturbed_steps(const RunData& run) {
  std::set<std::int64_t> steps;
  const auto add = [&](std::int64_t step) {
    steps.insert(step);
    steps.insert(step + 1);
  };
  for (const EvaluationRow& row : run.evaluations) add(row.step);
  for (const Event& event : run.events) {
    if (event.kind.starts_with("checkpoint")) add(event.step);
  }
  for (const RankTimings& rank : run.ranks) {
    for (const TimingRow& row : rank.rows) {
      if (row.traced) add(row.step);
    }
  }
  return steps;
}

/// Steps of a start: the first tenth of them, from 2 to 20.
std::int64_t warmup_steps(std::size_t steps) {
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(steps / 10), 2, 20);
}

void split_ranks(RunFigures& figures) {
  const RunData& run = figures.data;
  const std::set<std::int64_t> disturbed = disturbed_steps(run);
  for (const RankTimings& rank : run.ranks) {
    RankSplit sum = {.rank = rank.rank, .step_s = 0, .parts = {}};
    double count = 0;
    const std::int64_t first = rank.rows.front().step;
    const auto total = static_cast<std::size_t>(rank.rows.back().step - first + 1);
    for (const TimingRow& row : rank.rows) {
      if (row.step < first + run.warmup.value_or(warmup_steps(total)) ||
          disturbed.contains(row.step))
        continue;
      const RankSplit split = split_step(row);
      sum.step_s += split.step_s;
      for (std::size_t i = 0; i < kParts; ++i) sum.parts[i] += split.parts[i];
      ++count;
    }
    if (count == 0) continue;
    sum.step_s /= count;
    for (double& part : sum.parts) part /= count;
    figures.split.push_back(sum);
  }
  for (const RankSplit& split : figures.split) {
    const auto ranks = static_cast<double>(figures.split.size());
    figures.mean_split.step_s += split.step_s / ranks;
    for (std::size_t i = 0; i < kParts; ++i) figures.mean_split.parts[i] += split.parts[i] / ranks;
  }
}

void find_lost_time(RunFigures& figures) {
  const RankSplit& mean = figures.mean_split;
  if (mean.step_s <= 0) return;
  for (std::size_t part = 0; part < kParts; ++part) {
    const bool useful = part == static_cast<std::size_t>(Part::compute) ||
                        part == static_cast<std::size_t>(Part::update);
    const double share = mean.parts[part] / mean.step_s;
    if (!useful && share >= kSilent)
      figures.lost.push_back({part_name(part), mean.parts[part], share});
  }
  std::sort(figures.lost.begin(), figures.lost.end(),
            [](const LostTime& a, const LostTime& b) { return a.seconds > b.seconds; });
  if (figures.lost.size() > 3) figures.lost.resize(3);
}

void count_collectives(RunFigures& figures) {
  if (figures.data.ranks.empty()) return;
  std::map<std::string, CollectiveRow> rows;
  const RankTimings& rank = figures.data.ranks.front();
  for (const TimingRow& row : rank.rows) {
    for (const auto& [name, call] : row.calls) {
      rows[name].calls += call.first / static_cast<double>(rank.rows.size());
      rows[name].bytes += call.second / static_cast<double>(rank.rows.size());
    }
  }
  for (auto& [name, row] : rows) {
    row.name = name;
    figures.collectives.push_back(row);
  }
  std::sort(figures.collectives.begin(), figures.collectives.end(),
            [](const CollectiveRow& a, const CollectiveRow& b) { return a.bytes > b.bytes; });
}

void sum_samples(RunFigures& figures) {
  std::map<int, std::vector<const GpuSample*>> gpus;
  for (const GpuSample& sample : figures.data.gpus) gpus[sample.index].push_back(&sample);
  for (const auto& [index, samples] : gpus) {
    GpuSummary gpu = {.index = index, .name = samples.front()->name, .samples = samples.size()};
    std::vector<double> utilization;
    std::vector<double> power;
    for (const GpuSample* sample : samples) {
      utilization.push_back(sample->utilization);
      power.push_back(sample->power_w);
      gpu.peak_mib = std::fmax(gpu.peak_mib, sample->memory_mib);
      gpu.total_mib = std::fmax(gpu.total_mib, sample->total_mib);
      gpu.max_temperature = std::fmax(gpu.max_temperature, sample->temperature);
      gpu.throttled += (sample->throttled ? 1.0 : 0.0) / static_cast<double>(samples.size());
    }
    gpu.mean_utilization = mean_finite(utilization);
    gpu.mean_power_w = mean_finite(power);
    figures.gpus.push_back(std::move(gpu));
  }
}

HostFigures host_figures(std::string host, const std::vector<CpuSample>& samples,
                         double gpu_peak_mib) {
  HostFigures figures = {
      .host = std::move(host), .samples = samples.size(), .gpu_peak_mib = gpu_peak_mib};
  std::vector<double> cpu;
  std::vector<double> memory;
  double before_s = INFINITY;
  for (const CpuSample& sample : samples) {
    // The first sample of a process, also after a resume, has nothing to be measured against.
    if (sample.elapsed_s > std::exchange(before_s, sample.elapsed_s)) {
      cpu.push_back(sample.share);
      figures.cpu_peak = std::fmax(figures.cpu_peak, sample.share);
    }
    memory.push_back(sample.resident_mib);
    figures.memory_peak_mib = std::fmax(figures.memory_peak_mib, sample.resident_mib);
  }
  figures.cpu_mean = mean_finite(cpu);
  figures.memory_mean_mib = mean_finite(memory);
  return figures;
}

/// Name of the host of rank 0.
std::string first_host(const RunData& run) {
  if (!run.environment.is_object()) return "first host";
  const auto hosts = run.environment.find("hosts");
  if (hosts == run.environment.end() || !hosts->is_array() || hosts->empty()) return "first host";
  const std::string name = text((*hosts)[0], "name");
  return name.empty() ? "first host" : name;
}

void sum_hosts(RunFigures& figures) {
  const RunData& run = figures.data;
  double gpu_peak_mib = kUnknown;
  for (const GpuSummary& gpu : figures.gpus) gpu_peak_mib = std::fmax(gpu_peak_mib, gpu.peak_mib);
  if (!run.cpu.empty() || !run.other_hosts.empty())
    figures.hosts.push_back(host_figures(first_host(run), run.cpu, gpu_peak_mib));
  for (const HostSamples& host : run.other_hosts)
    figures.hosts.push_back(host_figures(host.host, host.cpu, host.gpu_peak_mib));
}

std::string device_of(const RunData& run) {
  const auto names = run.environment.find("gpu_names");
  if (!run.environment.is_object() || names == run.environment.end()) return {};
  if (setting(run, "parallel.backend") == "gloo") return "CPU";
  if (names->is_array() && !names->empty() && (*names)[0].is_string()) return (*names)[0];
  return "CPU";
}

std::string first_sentence(const RunFigures& f) {
  if (f.data.steps.empty()) return "No step of this run was recorded.";
  std::string text;
  const double rate = f.figures.value("samples_per_s");
  const double mfu = f.figures.value("mfu");
  const double not_finite = f.figures.value("not_finite");
  if (std::isfinite(rate))
    text = fmt::format("{} samples/s, {} a step", rate_words(rate),
                       time_words(f.figures.value("step_s")));
  else
    text = fmt::format("{} steps, too few to measure a rate", f.data.steps.size());
  if (mfu > 0) text += fmt::format(", {} MFU", share_words(mfu));
  if (!f.lost.empty())
    text +=
        fmt::format("; {} of a step: {}", share_words(f.lost.front().share), f.lost.front().what);
  else if (f.mean_split.step_s > 0)
    text += "; no wait takes more than 2 % of a step";
  if (not_finite > 0) text += fmt::format(". The loss was not finite in {:.0f} steps", not_finite);
  if (!f.data.failure.is_null()) text += ". The run failed";
  return text + ".";
}

}  // namespace

const char* part_name(std::size_t part) {
  static constexpr std::array<const char*, kParts> kNames = {
      "compute",          "wait for input", "wait for gather", "wait for reduce",
      "wait for receive", "gradient norm",  "update",          "other"};
  return kNames.at(part);
}

std::vector<const StepRow*> steady_steps(const RunData& run) {
  const std::set<std::int64_t> disturbed = disturbed_steps(run);
  std::vector<const StepRow*> steady;
  if (run.steps.empty()) return steady;
  const std::int64_t first =
      run.steps.front().step + run.warmup.value_or(warmup_steps(run.steps.size()));
  for (const StepRow& row : run.steps) {
    if (row.step >= first && !disturbed.contains(row.step)) steady.push_back(&row);
  }
  return steady;
}

RunFigures run_figures(RunData run, int ranks) {
  RunFigures f;
  f.data = std::move(run);
  f.label = f.data.name;
  const RunData& data = f.data;
  const double world = number(data.environment, "world_size");
  f.ranks = ranks > 0    ? ranks
            : world >= 1 ? static_cast<int>(std::min(world, 1e6))
                         : static_cast<int>(data.ranks.size());
  f.device = device_of(data);
  const std::vector<const StepRow*> steady = steady_steps(data);
  f.num_steady = steady.size();
  f.figures = read_figures(reading_of(data, steady, f.ranks, f.device == "CPU"));
  if (!data.steps.empty()) f.last_step = data.steps.back().step;
  split_ranks(f);
  find_lost_time(f);
  count_collectives(f);
  sum_samples(f);
  sum_hosts(f);
  f.goodput = goodput_of(data);
  f.sentence = first_sentence(f);
  return f;
}

}  // namespace dstrain::report
