#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "engine/base/median.h"
#include "engine/base/printable.h"
#include "engine/recipe/datasets.h"
#include "engine/report/figures.h"
#include "engine/report/words.h"

namespace dstrain::report {
namespace {

constexpr std::size_t kMaxAdvice = 5;
constexpr double kMinShare = 0.02;  // of a step

double part_share(const RunFigures& run, Part part) {
  if (run.mean_split.step_s <= 0) return 0;
  return run.mean_split.parts[static_cast<std::size_t>(part)] / run.mean_split.step_s;
}

int whole_setting(const RunFigures& run, const char* path, int otherwise) {
  const std::string value = setting(run.data, path);
  int number = otherwise;
  std::from_chars(value.data(), value.data() + value.size(), number);
  return number;
}

std::optional<Advice> data_wait(const RunFigures& run) {
  double share = 0;
  for (const RankTimings& rank : run.data.ranks) {
    std::vector<double> shares;
    for (const TimingRow& row : rank.rows) {
      if (!row.traced) shares.push_back(row.data_wait_s / row.step_s);
    }
    if (!shares.empty()) share = std::max(share, median(shares));
  }
  if (share <= 0.03) return std::nullopt;
  const int workers = whole_setting(run, "data.workers", 1);
  const std::string data = setting(run.data, "data.name");
  const bool image_files = std::ranges::any_of(datasets(), [&](const DatasetRow& row) {
    return row.spelling == data && reads(row, "data.decode");
  });
  std::string change = fmt::format("more threads that read ({} now); ", workers);
  if (image_files && !run.gpus.empty() && setting(run.data, "data.decode") != "gpu" &&
      setting(run.data, "data.pack") != "pixels")
    change += "data.decode: gpu, if it is an A100, H100 or H200; ";
  change += image_files ? "data.pack; " : "pack short texts; ";
  return Advice{.id = "data-wait",
                .finding = fmt::format("{} of a step waits for samples", share_words(share)),
                .change = change + "look at the rate of the disk under data.path",
                .share = share,
                .overrides = {fmt::format("data.workers={}", 2 * std::max(1, workers))}};
}

std::optional<Advice> exposed_gather(const RunFigures& run) {
  const double share = part_share(run, Part::gather);
  const int stage = whole_setting(run, "parallel.zero.stage", 0);
  if (share <= 0.05 || stage == 0) return std::nullopt;
  Advice advice = {
      .id = "exposed-gather",
      .finding = fmt::format("{} of a step, {}, waits for parameters to be gathered",
                             share_words(share), time_words(share * run.mean_split.step_s)),
      .change = {},
      .share = share};
  if (stage == 3) {
    const int prefetch = whole_setting(run, "parallel.zero.prefetch", 1);
    advice.change = "gather further ahead, or ZeRO stage 2 where the plan fits";
    advice.overrides = {fmt::format("parallel.zero.prefetch={}", prefetch + 1)};
  } else {
    advice.change = "a lower ZeRO stage where the plan fits, which gathers less";
    advice.overrides = {"parallel.zero.stage=0"};
  }
  return advice;
}

std::optional<Advice> exposed_reduce(const RunFigures& run) {
  // Without ZeRO what is gathered are parts of summed gradients.
  double share = part_share(run, Part::reduce);
  if (whole_setting(run, "parallel.zero.stage", 0) == 0) share += part_share(run, Part::gather);
  if (share <= 0.05) return std::nullopt;
  Advice advice = {
      .id = "exposed-reduce",
      .finding = fmt::format("{} of a step, {}, waits for gradients to be reduced",
                             share_words(share), time_words(share * run.mean_split.step_s)),
      .change = {},
      .share = share};
  if (setting(run.data, "precision.reduce") == "fp32" &&
      setting(run.data, "precision.compute") == "bf16") {
    advice.change = "reduce in bf16: half the bytes; compare the loss";
    advice.overrides = {"precision.reduce=bf16"};
  } else {
    const int global = whole_setting(run, "batch.global", 0);
    advice.change = "more samples between two reductions (batch.global), if training allows it";
    if (global > 0) advice.overrides = {fmt::format("batch.global={}", 2 * global)};
  }
  return advice;
}

/// Median of the host's work in the untraced steps, as a share of a step; of the rank with the
/// most. kUnknown without timings.
double host_work(const RunFigures& run) {
  double share = kUnknown;
  for (const RankTimings& rank : run.data.ranks) {
    std::vector<double> shares;
    for (const TimingRow& row : rank.rows) {
      if (!row.traced && row.host_s > 0) shares.push_back(row.host_s / row.step_s);
    }
    if (!shares.empty()) share = std::fmax(share, median(shares));
  }
  return share;
}

/// Traced steps run without CUDA graphs and under the profiler, so the timings of the other steps
/// have to agree that the host is slow.
std::optional<Advice> host_bound(const RunFigures& run) {
  constexpr double kEmptyQueue = 0.1;  // of the window
  constexpr double kHostWork = 0.5;    // of an untraced step
  if (!run.data.traced) return std::nullopt;
  double empty = 0;
  double window = 0;
  for (const trace::RankFigures& rank : run.data.traced->analysis.ranks) {
    if (!rank.launches) continue;
    empty += static_cast<double>(rank.launches->host_bound);
    window += static_cast<double>(rank.all.window);
  }
  const double share = window > 0 ? empty / window : 0;
  const double work = host_work(run);
  if (share <= kEmptyQueue || work < kHostWork) return std::nullopt;
  Advice advice = {
      .id = "host-bound",
      .finding = fmt::format(
          "nothing is queued on the GPU in {} of the traced steps{}", share_words(share),
          std::isfinite(work)
              ? fmt::format(", and the host works {} of an untraced step", share_words(work))
              : std::string()),
      .change = "more work for each launch: a larger batch.micro where memory allows it",
      .share = share};
  const nlohmann::json batch =
      run.data.plan.is_object() ? run.data.plan.value("batch", nlohmann::json()) : nlohmann::json();
  const double data_ranks = number(batch, "data_ranks");
  const int micro = whole_setting(run, "batch.micro", 0);
  const int global = whole_setting(run, "batch.global", 0);
  if (micro > 0 && micro <= 1 << 20 &&
      2 * micro * (data_ranks >= 1 ? data_ranks : run.ranks) <= global)
    advice.overrides = {fmt::format("batch.micro={}", 2 * micro)};
  else
    advice.change += "; batch.global has no room for it now";
  return advice;
}

std::optional<Advice> allocations(const RunFigures& run) {
  if (!run.data.traced) return std::nullopt;
  std::map<std::int64_t, std::int64_t> steps;  // calls by step
  std::string region;
  std::int64_t peak = 0;
  std::int64_t calls = 0;
  for (const trace::RankFigures& rank : run.data.traced->analysis.ranks) {
    if (!rank.memory) continue;
    for (const trace::MemoryUse::Step& step : rank.memory->steps) {
      if (!step.grew_late()) continue;
      steps[step.step] += step.driver_calls;
      calls += step.driver_calls;
      if (rank.memory->peak_allocated <= peak) continue;
      peak = rank.memory->peak_allocated;
      region = rank.memory->peak_action;
    }
  }
  if (steps.empty()) return std::nullopt;
  constexpr std::size_t kSteps = 5;
  std::vector<std::int64_t> named;
  for (const auto& [step, count] : steps) {
    if (named.size() < kSteps) named.push_back(step);
  }
  std::string finding = fmt::format(
      "{} {} of cudaMalloc in step {}{}, each of which waits for the GPU", calls,
      calls == 1 ? "call" : "calls", fmt::join(named, ", "),
      steps.size() > kSteps ? fmt::format(" and {} more", steps.size() - kSteps) : std::string());
  if (!region.empty())
    finding += fmt::format("; memory is fullest in {}, with {}", shown(region, 100),
                           bytes_words(static_cast<double>(peak)));
  return Advice{.id = "allocations",
                .finding = std::move(finding),
                .change =
                    "samples of one length in all steps; where the device is nearly full, a "
                    "smaller batch.micro",
                .share = kMinShare};
}

const char* straggler_change(const std::string& cause) {
  if (cause == "compute")
    return "look at its GPU: clock rate and temperature, other programs on it";
  if (cause == "launch") return "look at its host: other processes, cores that it may use";
  if (cause == "data") return "look at its samples: the disk under data.path, data.workers";
  return "look at its host: clock rate and temperature, other processes, disk";
}

/// The one of the traces that made others wait longest; of `rank` where it is given.
const trace::Straggler* traced_straggler(const RunFigures& run, std::optional<int> rank) {
  const trace::Straggler* worst = nullptr;
  if (!run.data.traced || !run.data.traced->analysis.collectives) return worst;
  for (const trace::Straggler& one : run.data.traced->analysis.collectives->stragglers) {
    if ((!rank || one.rank == *rank) && (worst == nullptr || one.blame > worst->blame))
      worst = &one;
  }
  return worst;
}

struct SlowRank {
  int rank = 0;
  Advice advice;
};

/// By the timings: the rank that waits least for the others makes them wait.
std::optional<SlowRank> timed_straggler(const RunFigures& run) {
  const auto& ranks = run.data.ranks;
  if (ranks.size() < 2) return std::nullopt;
  std::map<std::int64_t, std::vector<std::pair<int, const TimingRow*>>> steps;
  for (const RankTimings& rank : ranks) {
    for (const TimingRow& row : rank.rows) {
      if (!row.traced) steps[row.step].emplace_back(rank.rank, &row);
    }
  }
  std::map<int, std::pair<int, double>> blamed;  // steps, and the others' waits beyond its own
  int whole = 0;
  double time = 0;
  for (const auto& [step, rows] : steps) {
    if (rows.size() != ranks.size()) continue;
    ++whole;
    const auto min = std::min_element(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
      return a.second->exposed_comm_s < b.second->exposed_comm_s;
    });
    double waits = 0;
    for (const auto& [rank, row] : rows) waits += row->exposed_comm_s - min->second->exposed_comm_s;
    auto& [count, blame] = blamed[min->first];
    ++count;
    blame += waits / static_cast<double>(rows.size() - 1);
    time += min->second->step_s;
  }
  for (const auto& [rank, of_rank] : blamed) {
    const auto& [count, blame] = of_rank;
    const double share = time > 0 ? blame / time : 0;
    if (2 * count <= whole || share < kMinShare) continue;
    return SlowRank{
        .rank = rank,
        .advice = {.id = "straggler",
                   .finding = fmt::format("rank {} is last in {} of {} steps; the others wait {} "
                                          "of a step for it",
                                          rank, count, whole, share_words(share)),
                   .change = straggler_change(""),
                   .share = share}};
  }
  return std::nullopt;
}

/// Timings cover more steps, traces know the cause.
std::optional<Advice> straggler(const RunFigures& run) {
  if (std::optional<SlowRank> slow = timed_straggler(run)) {
    const trace::Straggler* traced = traced_straggler(run, slow->rank);
    if (traced != nullptr && !traced->cause.empty()) {
      slow->advice.finding += fmt::format("; cause in the traced steps: {}", traced->cause);
      slow->advice.change = straggler_change(traced->cause);
    }
    return std::move(slow->advice);
  }
  const trace::Straggler* traced = traced_straggler(run, std::nullopt);
  if (traced == nullptr) return std::nullopt;
  return Advice{
      .id = "straggler",
      .finding = fmt::format(
          "rank {} came last to {} of {} traced collectives of {}; the others waited {} of the "
          "window for it; cause: {}",
          traced->rank, traced->instances, traced->of, shown(traced->group, 60),
          share_words(traced->share), traced->cause.empty() ? "not known" : traced->cause),
      .change = straggler_change(traced->cause),
      .share = traced->share};
}

std::optional<Advice> memory_free(const RunFigures& run) {
  if (!(run.figures.value("memory_peak") < 0.7 * run.figures.value("memory_device")))
    return std::nullopt;
  const std::string recompute = setting(run.data, "memory.recompute");
  const bool recomputes = run.data.plan.is_object() && run.data.plan.contains("recompute") &&
                          run.data.plan["recompute"] == true;
  const bool stage_3 = whole_setting(run, "parallel.zero.stage", 0) == 3;
  if (!recomputes && !stage_3) return std::nullopt;
  return Advice{
      .id = "memory-free",
      .finding = fmt::format(
          "the peak is {} of {}, and {}", bytes_words(run.figures.value("memory_peak")),
          bytes_words(run.figures.value("memory_device")),
          recomputes ? "activations are computed twice" : "parameters are gathered each step"),
      .change = recomputes ? "keep activations, or larger batch.micro"
                           : "ZeRO stage 2, or larger batch.micro",
      .share = kMinShare,
      .overrides = {recomputes ? "memory.recompute=none" : "parallel.zero.stage=2"}};
}

std::optional<Advice> throttled(const RunFigures& run) {
  const GpuSummary* worst = nullptr;
  for (const GpuSummary& gpu : run.gpus) {
    if (gpu.throttled > 0.05 && (worst == nullptr || gpu.throttled > worst->throttled))
      worst = &gpu;
  }
  if (worst == nullptr) return std::nullopt;
  return Advice{
      .id = "throttled",
      .finding = fmt::format("GPU {} lowered its clock in {} of the samples, at up to {:.0f} C",
                             worst->index, share_words(worst->throttled), worst->max_temperature),
      .change = "cooling, power limit, other jobs of the machine",
      .share = worst->throttled};
}

std::optional<Advice> not_finite(const RunFigures& run) {
  const auto bad =
      std::fmax(0, std::fmax(run.figures.value("not_finite"), run.figures.value("skipped_steps")));
  const auto steps = static_cast<double>(run.data.steps.size());
  if (steps == 0 || bad / steps <= 0.01) return std::nullopt;
  return Advice{.id = "not-finite",
                .finding = fmt::format("{} steps had a loss or gradient that is not finite", bad),
                .change = "lower optimizer.lr or a longer warm-up; bf16 in place of fp16",
                .share = bad / steps};
}

constexpr std::optional<Advice> (*kRules[])(const RunFigures&) = {
    data_wait,   host_bound,  exposed_gather, exposed_reduce, straggler,
    memory_free, allocations, throttled,      not_finite};

}  // namespace

std::vector<Advice> advise(const RunFigures& run, const PredictStep& predict) {
  std::vector<Advice> all;
  for (const auto rule : kRules) {
    if (std::optional<Advice> advice = rule(run); advice && advice->share >= kMinShare)
      all.push_back(std::move(*advice));
    else if (advice && advice->id == "not-finite")
      all.push_back(std::move(*advice));
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Advice& a, const Advice& b) { return a.share > b.share; });
  if (all.size() > kMaxAdvice) all.resize(kMaxAdvice);
  // Both sides are predictions, so that what the prediction leaves out is in neither.
  std::optional<double> now;
  bool asked = false;
  for (Advice& advice : all) {
    if (advice.overrides.empty() || !predict) continue;
    // A plan knows nothing of readers and launches, and another global batch is another step.
    if (advice.id == "data-wait" || advice.id == "host-bound" ||
        advice.overrides[0].starts_with("batch.global"))
      continue;
    if (!asked) now = predict(run, {});
    asked = true;
    if (!now || *now <= 0) break;
    if (const auto changed = predict(run, advice.overrides))
      advice.predicted_change = *changed / *now - 1;
  }
  return all;
}

}  // namespace dstrain::report
