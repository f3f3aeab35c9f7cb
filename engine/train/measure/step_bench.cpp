#include "engine/train/measure/step_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "engine/base/clock.h"
#include "engine/base/units.h"
#include "engine/program/simulate.h"
#include "engine/recipe/datasets.h"
#include "engine/train/measure/device_machine.h"
#include "engine/train/session/session.h"

namespace dstrain {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

void use_random_data(Recipe& recipe, int steps) {
  recipe.data.name = DatasetName::random;
  recipe.data.augment = {};
  recipe.data.packing = false;
  recipe.data.samples = std::max(recipe.data.samples, recipe.batch.global * steps);
  recipe.run.epochs = 0;
  recipe.run.steps = steps;
  recipe.phases.clear();
  recipe.run.generate = 0;
}

StepBench bench_step(Recipe recipe, const World& world, int warmup, int steps, bool kernels,
                     RankRecordFile& record) {
  const int all = warmup + steps + 2;
  use_random_data(recipe, all);
  Session session(recipe, world, record);
  session.seek(0);
  const SectionScope section(record, RankSection::step);
  const auto step = [&] {
    session.enqueue_step();
    (void)session.executor().take_outcome();
  };
  reset_peak_memory(world.device.device);
  StepBench bench;
  const auto first = Clock::now();
  for (int i = 0; i < warmup; ++i) {
    step();
    if (i == 0) bench.first_s = seconds_since(first);
  }
  bench.start = record.start_parts();
  // One step is always queued behind the one that is timed, as in training.
  std::vector<double> times;
  session.enqueue_step();
  for (int i = 0; i < steps; ++i) {
    if (i + 1 < steps) session.enqueue_step();
    times.push_back(session.executor().take_outcome().step_s);
  }
  std::ranges::sort(times);

  bench.device = world.device.name;
  bench.step_s = times[times.size() / 2];
  bench.fastest_s = times.front();
  bench.slowest_s = times.back();
  const auto begin = Clock::now();
  session.enqueue_step();
  bench.host_s = seconds_since(begin);
  (void)session.executor().take_outcome();
  const Strategy& strategy = session.strategy();
  const Machine machine = machine_of_rank(world, session.threads());
  bench.planned_for = machine.name;
  const Simulation plan = simulate(strategy.training, strategy.layout, session.cost(), machine);
  bench.planned_s = plan.step_s;
  bench.planned_memory = plan.ledger.allocated();
  bench.memory = memory_figures(world.device.device).allocated_peak;
  bench.host_memory = memory_figures(world.device.device).host_peak;
  bench.planned_host_memory = plan.ledger.host();
  const double samples = static_cast<double>(recipe.batch.global) / world.size;
  const int sequence = session.model().sequence;
  bench.unit = sequence > 0 ? "tok/s" : frames_of(recipe) > 1 ? "clips/s" : "img/s";
  bench.rate = samples * std::max(1, sequence) / bench.step_s;
  bench.flops = useful_flops(strategy);
  const double peak = datasheet_flops(world.device.name);
  bench.mfu = peak > 0 ? bench.flops / bench.step_s / peak : 0;
  if (kernels) bench.kernels = profile_kernels(step);
  return bench;
}

namespace {

/// "start           3.21 s: load the program 0.40, build model 0.20, first step 1.50".
std::string start_text(const StepBench& b) {
  double all = b.first_s;
  std::string parts;
  for (const auto& [what, seconds] : b.start) {
    all += seconds;
    parts += fmt::format("{} {:.2f}, ", what, seconds);
  }
  return fmt::format("start           {:.2f} s: {}first step {:.2f}\n", all, parts, b.first_s);
}

}  // namespace

std::string bench_report(const StepBench& b) {
  std::string text = fmt::format(
      "device          {}\n"
      "step            {:.2f} ms median ({:.2f} to {:.2f}); plan for {}: {:.2f} ms\n"
      "host work       {:.2f} ms of it\n"
      "rate            {} {}\n"
      "useful FLOPs    {:.2f} TFLOP a step, {:.1f} TFLOP/s\n",
      b.device, b.step_s * 1e3, b.fastest_s * 1e3, b.slowest_s * 1e3, b.planned_for,
      b.planned_s * 1e3, b.host_s * 1e3, format_count(b.rate), b.unit, b.flops * 1e-12,
      b.flops / b.step_s * 1e-12);
  text += start_text(b);
  if (b.mfu > 0)
    text += fmt::format("MFU             {:.1f} % of the datasheet's dense bf16\n", b.mfu * 100);
  if (b.memory > 0) {
    text += fmt::format(
        "peak memory     {}, planned {} ({:+.1f} %)\n", format_bytes(b.memory),
        format_bytes(b.planned_memory),
        100 * (static_cast<double>(b.memory) / static_cast<double>(b.planned_memory) - 1));
  }
  if (b.planned_host_memory > 0) {
    text += fmt::format("host memory     {} at the peak, of which {} are planned for offload\n",
                        format_bytes(b.host_memory), format_bytes(b.planned_host_memory));
  }
  return text;
}

std::string kernel_report(const StepBench& b, int max) {
  double all = 0;
  for (const KernelTime& kernel : b.kernels) all += kernel.seconds;
  std::string text = fmt::format("{:>10}  {:>6}  {:>6}  kernel ({:.2f} ms in all)\n", "ms", "share",
                                 "runs", all * 1e3);
  for (std::size_t i = 0; i < b.kernels.size() && std::cmp_less(i, max); ++i) {
    const KernelTime& k = b.kernels[i];
    text += fmt::format("{:>10.3f}  {:>5.1f}%  {:>6}  {}\n", k.seconds * 1e3, 100 * k.seconds / all,
                        k.runs, k.name.substr(0, 140));
  }
  return text;
}

}  // namespace dstrain
