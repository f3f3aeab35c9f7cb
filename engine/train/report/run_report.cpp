#include "engine/train/report/run_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/job_environment.h"
#include "engine/base/json.h"
#include "engine/base/median.h"
#include "engine/base/run_layout.h"
#include "engine/base/units.h"
#include "engine/program/plan_report.h"
#include "engine/recipe/datasets.h"
#include "engine/recipe/phases.h"
#include "engine/recipe/render.h"
#include "engine/train/report/evaluation_files.h"
#include "engine/train/session/learning_rate.h"

namespace dstrain {
namespace {

/// On one line, control characters blanked, at most `max` bytes (a cut character goes, too).
std::string one_line(std::string text, std::size_t max) {
  if (text.size() > max) {
    while (max > 0 && (static_cast<unsigned char>(text[max]) & 0xC0) == 0x80) --max;
    text.resize(max);
  }
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = ' ';
  }
  return text;
}

/// The end of `text` on one line.
std::string tail(const std::string& text, std::size_t max) {
  std::size_t begin = text.size() > max ? text.size() - max : 0;
  while (begin < text.size() && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) ++begin;
  return one_line(text.substr(begin), max);
}

constexpr std::int64_t kUnsteadySteps = 5;  ///< that make handles, plans, buffers and graphs

/// "1 data rank", "4 data ranks".
std::string counted(int count, const char* noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

MetricsOptions metrics_options(const Recipe& recipe, const RunLayout& directory,
                               std::int64_t first_step) {
  const MetricsConfig& config = recipe.metrics;
  MetricsOptions options{.metrics = directory.metrics(),
                         .events = directory.events(),
                         .tensorboard = {},
                         .resumed_step = first_step,
                         .run = directory.root().filename().string(),
                         .prometheus = config.prometheus};
  if (config.tensorboard) options.tensorboard = directory.tensorboard();
  if (config.wandb != WandbMode::never) {
    options.wandb = {.folder = directory.wandb(),
                     .online = config.wandb == WandbMode::online,
                     .project = config.wandb_project,
                     .entity = config.wandb_entity,
                     .group = config.wandb_group,
                     .config = json_text(json_or_null(recipe_json({.recipe = recipe}))["recipe"])};
  }
  return options;
}

}  // namespace

RunReport::RunReport(const World& world, const RunLayout& directory, Session& session,
                     const PlanReport& plan, Progress& progress, const RankRecordFile& record,
                     std::int64_t first_step, Clock::time_point start,
                     std::vector<std::string> changes)
    : world_(world),
      directory_(directory),
      session_(session),
      plan_(plan),
      progress_(progress),
      record_(record),
      metrics_(metrics_options(session.recipe(), directory, first_step)),
      first_step_(first_step),
      start_(start),
      changes_(std::move(changes)),
      useful_flops_(useful_flops(session.strategy())) {
  metrics_.add(progress);
}

void RunReport::begin(Begin how) {
  metrics_.event(how == Begin::started   ? "started"
                 : how == Begin::resumed ? "resumed"
                                         : "phase",
                 first_step_);
  new_process_ = how != Begin::next_phase;
  announce(how);
}

void RunReport::announce(Begin how) {
  const Recipe& recipe = session_.recipe();
  const Strategy& strategy = session_.strategy();
  const BatchPlan& batch = strategy.batch;
  // Else the launcher has said it.
  if (how != Begin::next_phase && std::getenv(job_environment::kRunDirectory) == nullptr) {
    progress_.note(fmt::format("run directory {}", directory_.root().string()));
  }
  if (!recipe.phases.empty()) progress_.note(describe_phase(recipe, session_.phase()));
  for (const std::string& note : session_.notes()) progress_.note(note);
  progress_.note(fmt::format("{} on {} x {}: {}, ZeRO stage {}, {} train steps", recipe.model.name,
                             world_.size, world_.device.name, strategy.mesh.describe(),
                             recipe.parallel.zero.stage, session_.total_steps()));
  const ParameterCount parameters = count_parameters(session_.cost(), strategy.layout);
  progress_.note(fmt::format("{} parameters{}", format_count(static_cast<double>(parameters.all)),
                             trained_part(parameters)));
  progress_.note(
      fmt::format("global batch {} = {} x micro-batch {} x {}{}", batch.global,
                  counted(batch.data_ranks, "data rank"), batch.micro,
                  counted(batch.micro_batches, "accumulation step"),
                  batch.fillers() > 0 ? fmt::format(" - {} fillers", batch.fillers()) : ""));
  progress_.note(fmt::format("planned memory per rank: {} allocated",
                             format_bytes(plan_.step.ledger.allocated())));
  if (!plan_.wires.empty()) progress_.note("ZeRO++: " + plan_.wires);
  if (strategy.recompute) progress_.note("recompute: " + dstrain::describe(*strategy.recompute));
  const std::vector<std::string> built_in = built_in_machines();
  if (std::find(built_in.begin(), built_in.end(), plan_.machine.name) == built_in.end())
    progress_.note("planned with the rates of " + plan_.machine.name);
  if (how == Begin::resumed) {
    progress_.note(fmt::format("resumed at step {}", first_step_));
    for (const std::string& change : changes_) progress_.note(change);
    if (recipe.metrics.wandb != WandbMode::never)
      progress_.note(
          fmt::format("Weights & Biases: the run goes on there under its id; `wandb beta sync {}` "
                      "sends its parts "
                      "in their order",
                      directory_.wandb().string()));
  }
  if (first_step_ >= session_.total_steps()) {
    progress_.note(fmt::format(
        "nothing to do: the run is complete at step {}; raise run.steps or run.epochs, or start "
        "anew without --resume",
        first_step_));
  }
}

void RunReport::step(const StepOutcome& outcome, const HostTimes& host, bool traced) {
  const auto now = Clock::now();
  const double step_s = outcome.step_s;
  // The first step makes handles, plans and buffers: its time says nothing of the next ones.
  const bool second = outcome.step == first_step_ + 1;
  if (!first_step_s_) {
    first_step_s_ = seconds_since(start_);
    first_outcome_ = now;
    if (new_process_) {
      std::vector<std::pair<std::string, std::string>> parts;
      for (const auto& [what, seconds] : record_.start_parts())
        parts.emplace_back(what, fmt::format("{:.3f}", seconds));
      metrics_.event("first_step", outcome.step, std::move(parts));
    }
  }
  smoothed_step_s_ =
      smoothed_step_s_ == 0 || second ? step_s : 0.9 * smoothed_step_s_ + 0.1 * step_s;
  if (outcome.skipped) {
    progress_.note(
        fmt::format("step {}: skipped, a gradient is not finite (loss {}, {} skipped so far)",
                    outcome.step + 1, outcome.loss, outcome.skipped_steps));
    metrics_.event("skipped_step", outcome.step + 1, {{"loss", fmt::format("{}", outcome.loss)}});
  }
  const std::int64_t total = session_.total_steps();
  // Since the first step, so that the time left does not jump with every busy moment.
  const std::int64_t measured = outcome.step - first_step_;
  const double mean_step_s = measured > 0
                                 ? std::chrono::duration<double>(now - first_outcome_).count() /
                                       static_cast<double>(measured)
                                 : step_s;
  // The figures take the allocator's lock.
  if (outcome.step % 10 == 0) memory_ = allocator_figures(world_.device.device);
  const auto samples = static_cast<double>(session_.samples_of_step(outcome.step));
  const double sequence = session_.model().sequence;
  if (measured >= kUnsteadySteps && !traced) count(outcome, host);
  const auto timed = [&](auto&& value) { return outcome.times ? value() : kUnknown; };
  const auto of_pairs = [&](double PairMeans::*mean) {
    return outcome.pairs ? *outcome.pairs.*mean : kUnknown;
  };
  metrics_.step({.step = outcome.step + 1,
                 .total_steps = total,
                 .epoch = epoch_of(outcome.step + 1),
                 .epochs = session_.recipe().run.epochs,
                 .loss = outcome.loss,
                 .accuracy = outcome.top1,
                 .balance_loss = outcome.balance_loss > 0 ? outcome.balance_loss : kUnknown,
                 .rewards_chosen = of_pairs(&PairMeans::rewards_chosen),
                 .rewards_rejected = of_pairs(&PairMeans::rewards_rejected),
                 .rewards_accuracies = outcome.pairs ? outcome.top1 : kUnknown,
                 .rewards_margins = outcome.pairs ? outcome.pairs->margin() : kUnknown,
                 .logps_chosen = of_pairs(&PairMeans::logps_chosen),
                 .logps_rejected = of_pairs(&PairMeans::logps_rejected),
                 .lr = session_.learning_rate(outcome.step),
                 .grad_norm = outcome.gradient_norm,
                 .samples_per_s = samples / step_s,
                 .clips = frames_of(session_.recipe()) > 1,
                 .tokens_per_s = samples * sequence / step_s,
                 .mfu = mfu(step_s),
                 .step_s = step_s,
                 .smoothed_step_s = smoothed_step_s_,
                 .remaining_s = mean_step_s * static_cast<double>(total - outcome.step - 1),
                 .memory_bytes = memory_.allocated_peak,
                 .memory_allocated_bytes = memory_.allocated,
                 .memory_reserved_bytes = memory_.reserved,
                 .forward_s = timed([&] { return outcome.times->of(Phase::forward); }),
                 .backward_s = timed([&] { return outcome.times->of(Phase::backward); }),
                 .optimizer_s = timed([&] {
                   return outcome.times->of(Phase::norm) + outcome.times->of(Phase::update);
                 }),
                 .data_wait_s = timed([&] { return host.data_wait_s; }),
                 .exposed_comm_s = timed([&] { return outcome.times->exposed_comm_s; }),
                 .gpu_util = std::exchange(gpu_util_, kUnknown),
                 .gpu_temp_c = std::exchange(gpu_temp_c_, kUnknown),
                 .loss_scale = outcome.loss_scale,
                 .skipped_steps = static_cast<std::int64_t>(outcome.skipped_steps)});
}

void RunReport::count(const StepOutcome& outcome, const HostTimes& host) {
  steady_s_.push_back(outcome.step_s);
  if (!outcome.times) return;
  const StepTimes& times = *outcome.times;
  ++timed_;
  timed_s_ += outcome.step_s;
  data_wait_s_ += host.data_wait_s;
  for (std::size_t i = 0; i < times.phase_s.size(); ++i)
    times_.phase_s.at(i) += times.phase_s.at(i);
  for (std::size_t i = 0; i < times.wait_s.size(); ++i) times_.wait_s.at(i) += times.wait_s.at(i);
  times_.exposed_comm_s += times.exposed_comm_s;
}

void RunReport::evaluation(const EvaluationTotals& totals,
                           const std::optional<EvaluationTotals>& average, double seconds) {
  const std::int64_t step = session_.next_step();
  evaluation_ = totals;
  average_evaluation_ = average;
  evaluated_step_ = step;
  progress_.note(
      fmt::format("evaluation at step {}: {} in {}, {:.0f} samples/s", step, describe(totals),
                  format_duration(seconds),
                  static_cast<double>(session_.test_size()) * (average ? 2 : 1) / seconds));
  if (average) progress_.note(fmt::format("  average of the weights: {}", describe(*average)));
  describe_members(average ? *average : totals, step);
  const auto of_pairs = [&](double PairMeans::*mean) {
    return totals.pairs ? *totals.pairs.*mean : kUnknown;
  };
  evaluation_metrics_ = {.step = step,
                         .epoch = epoch_of(step),
                         .loss = totals.loss,
                         .accuracy = totals.top1,
                         .top5 = totals.top5,
                         .rewards_chosen = of_pairs(&PairMeans::rewards_chosen),
                         .rewards_rejected = of_pairs(&PairMeans::rewards_rejected),
                         .rewards_accuracies = totals.pairs ? totals.top1 : kUnknown,
                         .rewards_margins = totals.pairs ? totals.pairs->margin() : kUnknown,
                         .logps_chosen = of_pairs(&PairMeans::logps_chosen),
                         .logps_rejected = of_pairs(&PairMeans::logps_rejected),
                         .ema_loss = average ? average->loss : kUnknown,
                         .ema_accuracy = average ? average->top1 : kUnknown,
                         .samples = session_.test_size(),
                         .targets = static_cast<std::int64_t>(totals.targets),
                         .seconds = seconds};
}

void RunReport::describe_members(const EvaluationTotals& totals, std::int64_t step) {
  for (std::size_t i = 0; i < totals.members.size(); ++i) {
    const EvaluationTotals& one = totals.members[i];
    const std::string& name = session_.mixture()->members()[i].name;
    progress_.note(fmt::format("  {}: {}", name, describe(one)));
    metrics_.event("evaluated_member", step,
                   {{"member", name},
                    {"loss", fmt::format("{}", one.loss)},
                    {"accuracy", fmt::format("{}", one.top1)},
                    {"targets", fmt::format("{:.0f}", one.targets)}});
  }
}

void RunReport::end_evaluation(const std::vector<GeneratedAnswer>& answers,
                               const AnswerFigures& means) {
  show(answers);
  evaluation_metrics_.exact_match = means.exact_match;
  evaluation_metrics_.f1 = means.f1;
  evaluation_metrics_.right_answers = means.right_answers;
  metrics_.evaluation(evaluation_metrics_);
  if (answers.empty()) return;
  answers_ = fmt::format("{} of {} answers", describe_answers(means), answers.size());
  progress_.note("  " + answers_);
}

void RunReport::confusion(const EvaluationTotals& totals) {
  const std::optional<report::Confusion> counted = confusion_of(totals, session_.model());
  if (!counted) return;
  try {
    write_confusion(directory_.root(), *counted);
  } catch (const Error& error) {  // training goes on without them
    progress_.note(fmt::format("note: {}", error.what()));
  }
}

std::string RunReport::describe(const EvaluationTotals& totals) const {
  return describe_evaluation(totals, session_.model().is_language());
}

std::string describe_evaluation(const EvaluationTotals& totals, bool language) {
  if (totals.pairs) {
    return fmt::format(
        "loss {:.4f}, accuracy {}, rewards {:.4f} of chosen and {:.4f} of rejected "
        "answers, margin {:.4f} on {:.0f} pairs",
        totals.loss, format_share(totals.top1, 2), totals.pairs->rewards_chosen,
        totals.pairs->rewards_rejected, totals.pairs->margin(), totals.targets);
  }
  if (language) {
    return fmt::format("loss {:.4f}, perplexity {:.2f}, next-token accuracy {} on {:.0f} tokens",
                       totals.loss, std::exp(totals.loss), format_share(totals.top1, 2),
                       totals.targets);
  }
  return fmt::format("accuracy {}, top-5 {}, loss {:.4f} on {:.0f} samples",
                     format_share(totals.top1, 2), format_share(totals.top5, 2), totals.loss,
                     totals.targets);
}

/// A few answers of the model as it is now, so that a person sees what it learned.
void RunReport::show(const std::vector<GeneratedAnswer>& answers) {
  const std::int64_t step = session_.next_step();
  constexpr std::size_t kMaxShown = 300;
  for (const GeneratedAnswer& answer : answers) {
    progress_.note(fmt::format("  prompt   ...{}", tail(answer.prompt, kMaxShown)));
    progress_.note(fmt::format("  expected {}", one_line(answer.expected, kMaxShown)));
    progress_.note(fmt::format("  answer   {}", one_line(answer.generated, kMaxShown)));
    std::vector<std::pair<std::string, std::string>> fields = {
        {"prompt", answer.prompt}, {"expected", answer.expected}, {"answer", answer.generated}};
    const AnswerFigures& figures = answer.figures;
    if (std::isnan(figures.right_answers)) {
      fields.emplace_back("exact_match", fmt::format("{}", figures.exact_match));
      fields.emplace_back("f1", fmt::format("{:.4f}", figures.f1));
    } else {
      fields.emplace_back("right", figures.right_answers > 0 ? "true" : "false");
    }
    metrics_.event("generated", step, std::move(fields));
  }
}

/// Chowdhery et al. 2022, arXiv:2204.02311, appendix B: useful FLOPs of the step, without
/// recomputation, over what the datasheets of all GPUs promise.
double RunReport::mfu(double step_s) const {
  const double peak = datasheet_flops(world_.device.name);
  return peak > 0 ? useful_flops_ / step_s / peak : 0;
}

double RunReport::epoch_of(std::int64_t step) const {
  return static_cast<double>(step) / static_cast<double>(session_.steps_per_epoch());
}

void RunReport::skipped_checkpoint(std::int64_t steps, std::int64_t running, double interval_s) {
  progress_.note(
      fmt::format("warning: no checkpoint after step {}: that of step {} is still being written, "
                  "and another is "
                  "due every {} (run.checkpoint.every)",
                  steps, running, format_duration(interval_s)));
  metrics_.event("checkpoint_skipped", steps, {{"running", fmt::to_string(running)}});
}

void RunReport::checkpoint(const SaveResult& result, std::int64_t steps, double stall_s) {
  const std::string stall = fmt::format("{:.3f}", stall_s);
  if (result.ok) {
    progress_.note(fmt::format("checkpoint {} ({} in {})", result.path.string(),
                               format_bytes(result.bytes), format_duration(result.seconds)));
    metrics_.event("checkpoint_saved", parse_checkpoint_name(result.path).value_or(steps),
                   {{"path", result.path.string()}, {"stall_s", stall}});
  } else {
    progress_.note(fmt::format("warning: checkpoint failed: {}", result.error));
    metrics_.event("checkpoint_failed", steps, {{"error", result.error}, {"stall_s", stall}});
  }
}

void RunReport::verified(const VerifyResult& result, std::int64_t steps) {
  const std::string damage = fmt::format("{}", fmt::join(result.damaged, "; "));
  if (!damage.empty())
    progress_.note(fmt::format("warning: checkpoint {}: {}", result.path.string(), damage));
  metrics_.event(damage.empty() ? "checkpoint_verified" : "checkpoint_damaged",
                 parse_checkpoint_name(result.path).value_or(steps),
                 {{"seconds", fmt::format("{:.3f}", result.seconds)}, {"damage", damage}});
}

void RunReport::compared_replicas(const std::string& what, std::int64_t steps,
                                  const std::string& wrong) {
  ++compared_[what];
  if (wrong.empty()) {
    metrics_.event("replicas_equal", steps, {{"what", what}});
  } else {
    metrics_.event("replicas_differ", steps, {{"what", what}, {"who", wrong}});
  }
}

void RunReport::end(bool stopped, double skipped_steps, double host_s,
                    const SampleSummary& samples) {
  const std::int64_t done = session_.next_step();
  const bool last = session_.phase() + 1 == num_phases(session_.recipe());
  metrics_.event(stopped ? "stopped" : last ? "finished" : "phase_ended", done);
  progress_.end();
  progress_.note(fmt::format("{} after {} of {} steps in {}; first step {} after start",
                             stopped ? "stopped"
                             : last  ? "done"
                                     : "end of the phase",
                             done, session_.total_steps(), format_duration(seconds_since(start_)),
                             format_duration(first_step_s_.value_or(0))));
  if (evaluation_) {
    progress_.note(fmt::format("test {} at step {}", describe(*evaluation_), evaluated_step_));
    if (average_evaluation_)
      progress_.note(fmt::format("  average of the weights: {}", describe(*average_evaluation_)));
    if (!answers_.empty()) progress_.note("  " + answers_);
  }
  if (const Mixture* mixture = session_.mixture())
    progress_.note("epochs seen: " + mixture->describe_epochs(session_.samples_before(done)));
  if (skipped_steps > 0) {
    progress_.note(
        fmt::format("{:.0f} steps were skipped because a gradient was not finite", skipped_steps));
  }
  if (!compared_.empty()) {
    std::vector<std::string> parts;
    for (const auto& [what, times] : compared_)
      parts.push_back(fmt::format("{} {} time{}", what, times, times == 1 ? "" : "s"));
    progress_.note(
        fmt::format("replicas compared: {}; all ranks held the same", fmt::join(parts, ", ")));
  }
  report_speed();
  report_times();
  if (world_.device.is_cuda()) {
    if (host_s > 0) {
      progress_.note(fmt::format("host work: {} of a step of {}", format_duration(host_s),
                                 format_duration(smoothed_step_s_)));
    }
    report_memory();
  }
  report_samples(samples);
  report_plan(samples);
  report_communication(done - first_step_);
  (void)metrics_.flush();  // what a file did not take is among the missing
  for (const MissingMetrics& missing : metrics_.missing()) {
    progress_.note(fmt::format("warning: {} writes to {} are missing: {}", missing.writes,
                               missing.sink, missing.first_problem));
  }
  progress_.note(fmt::format("metrics, logs and checkpoints: {}", directory_.root().string()));
}

/// The median: a few steps wait for an evaluation's memory or for the disk.
void RunReport::report_speed() {
  if (steady_s_.empty()) return;
  std::vector<double> sorted = steady_s_;
  std::ranges::sort(sorted);
  const double step_s = median(steady_s_);
  const double samples = session_.recipe().batch.global;
  const double sequence = session_.model().sequence;
  std::string text =
      fmt::format("speed: {} a step (median of {}, 90 % below {}), {} samples/s",
                  format_duration(step_s), sorted.size(),
                  format_duration(sorted[sorted.size() * 9 / 10]), format_count(samples / step_s));
  if (sequence > 0) text += fmt::format(", {} tokens/s", format_count(samples * sequence / step_s));
  if (mfu(step_s) > 0) text += fmt::format(", MFU {}", format_share(mfu(step_s), 1));
  text += fmt::format("; an epoch of {} steps: {}", session_.steps_per_epoch(),
                      format_duration(step_s * static_cast<double>(session_.steps_per_epoch())));
  progress_.note(text);
}

void RunReport::report_times() {
  if (timed_ == 0) return;
  const auto share = [&](double seconds) { return format_share(seconds / timed_s_, 1); };
  progress_.note(fmt::format(
      "a step of rank 0 (mean of {} timed): forward {}, backward {}, norm {}, update {}; exposed "
      "communication {}, waits for data {} on the device and {} on the host",
      timed_, share(times_.of(Phase::forward)), share(times_.of(Phase::backward)),
      share(times_.of(Phase::norm)), share(times_.of(Phase::update)), share(times_.exposed_comm_s),
      share(times_.wait(Lane::copy_in)), share(data_wait_s_)));
}

/// Reports a sample of the first host.
void RunReport::host(const HostSample& sample) {
  const auto known = [](auto value) { return value < 0 ? kUnknown : static_cast<double>(value); };
  HostMetrics metrics{.time_s = static_cast<double>(sample.time_ns) * 1e-9,
                      .gpus = {},
                      .cpu_share = sample.cpu_share,
                      .resident_bytes = static_cast<double>(sample.resident_bytes)};
  for (const GpuSample& gpu : sample.gpus) {
    metrics.gpus.push_back({.index = gpu.index,
                            .utilization = known(gpu.utilization),
                            .temperature_c = known(gpu.temperature_c),
                            .power_w = known(gpu.power_w),
                            .used_bytes = known(gpu.used_bytes),
                            .total_bytes = known(gpu.total_bytes)});
    if (gpu.pci_bus.empty() || gpu.pci_bus != world_.device.pci_bus) continue;
    gpu_util_ = known(gpu.utilization) / 100;
    gpu_temp_c_ = known(gpu.temperature_c);
  }
  metrics_.host(metrics);
}

void RunReport::report_samples(const SampleSummary& samples) {
  constexpr std::size_t kMaxShown = 8;
  for (std::size_t i = 0; i < samples.gpus.size() && i < kMaxShown; ++i) {
    const SampleSummary::Gpu& gpu = samples.gpus[i];
    std::string text =
        fmt::format("GPU {}: memory used peak {:.0f} MiB, mean {:.0f}, min {:.0f}", gpu.index,
                    gpu.used_mib.max, gpu.used_mib.mean, gpu.used_mib.min);
    if (gpu.utilization.count > 0)
      text += fmt::format("; utilization mean {:.0f} %", gpu.utilization.mean);
    if (gpu.power_w.count > 0)
      text +=
          fmt::format("; power mean {:.0f} W, peak {:.0f} W", gpu.power_w.mean, gpu.power_w.max);
    if (gpu.temperature_c.count > 0) text += fmt::format("; up to {:.0f} C", gpu.temperature_c.max);
    progress_.note(text);
  }
  if (samples.resident_mib.count == 0) return;
  std::string text =
      fmt::format("memory of the ranks of this host: peak {:.0f} MiB, mean {:.0f}, min {:.0f}",
                  samples.resident_mib.max, samples.resident_mib.mean, samples.resident_mib.min);
  // A run that ends before the second look has no time in which its CPU could be measured.
  if (samples.cpu_share.count > 0)
    text += fmt::format("; CPU mean {:.0f} %", samples.cpu_share.mean);
  progress_.note(text);
}

/// What was planned beside what was measured, so that a plan that is wrong is seen.
void RunReport::report_plan(const SampleSummary& samples) {
  std::vector<std::string> parts;
  const auto add = [&](const char* what, double measured, double planned, auto&& format) {
    if (measured <= 0 || planned <= 0) return;
    parts.push_back(fmt::format("{} {} of {} ({:+.1f} %)", what, format(measured), format(planned),
                                100 * (measured / planned - 1)));
  };
  const auto bytes = [](double value) { return format_bytes(static_cast<Bytes>(value)); };
  if (!steady_s_.empty()) {
    add("step", median(steady_s_), plan_.step.step_s,
        [](double value) { return fmt::format("{:.1f} ms", 1e3 * value); });
  }
  const MemoryFigures memory = memory_figures(world_.device.device);
  const Ledger& ledger = plan_.step.ledger;
  if (world_.device.is_cuda()) {
    add("device memory", static_cast<double>(memory.allocated_peak),
        static_cast<double>(ledger.allocated()), bytes);
  }
  add("host memory of rank 0", static_cast<double>(memory.host_peak),
      static_cast<double>(planned_host_bytes(ledger, plan_.machine)), bytes);
  constexpr double kMiB = 1 << 20;
  add("of the host's ranks", samples.resident_mib.max * kMiB,
      static_cast<double>(planned_host_bytes(ledger, plan_.machine) * world_.local_size), bytes);
  if (!parts.empty())
    progress_.note(
        fmt::format("measured of planned on {}: {}", plan_.machine.name, fmt::join(parts, "; ")));
}

void RunReport::report_memory() {
  const MemoryFigures memory = memory_figures(world_.device.device);
  const auto planned = static_cast<double>(plan_.step.ledger.allocated());
  progress_.note(fmt::format(
      "peak GPU memory of rank 0: {} allocated, planned {} ({:+.1f}%); {} held by the allocator; "
      "{} outside it "
      "(context, libraries, communicators)",
      format_bytes(memory.allocated_peak), format_bytes(plan_.step.ledger.allocated()),
      100 * (static_cast<double>(memory.allocated_peak) / planned - 1),
      format_bytes(memory.reserved_peak), format_bytes(memory.outside_allocator())));
}

/// What the communicators counted, to be held against the plan's bytes per step.
void RunReport::report_communication(std::int64_t steps) {
  const auto purpose = [](const CommChannel& channel) {
    if (channel.lane == Lane::gather) return "parameters";
    if (channel.axis == Axis::pipeline) return "activations between stages";
    if (channel.lane == Lane::compute) {
      if (channel.axis == CommAxis::world) return "norm and metrics";
      return channel.axis.axes().contains(Axis::shard) ? "momentum of matrices" : "inside blocks";
    }
    return channel.axis == Axis::data ? "gradients of replicas" : "gradients";
  };
  for (const auto& [channel, communicator] : session_.communicators()) {
    if (communicator->size() == 1 || steps == 0) continue;
    for (const CallCount& count : communicator->counts()) {
      if (count.calls == 0) continue;
      const auto share = 1.0 / static_cast<double>(steps);
      progress_.note(
          fmt::format("communication of rank 0: {} of {}: {:.1f} calls and {} a step",
                      count.operation, purpose(channel), static_cast<double>(count.calls) * share,
                      format_bytes(static_cast<Bytes>(static_cast<double>(count.bytes) * share))));
    }
  }
}

}  // namespace dstrain
