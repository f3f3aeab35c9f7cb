#include "engine/train/trainer.h"

#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <future>
#include <optional>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/job_environment.h"
#include "engine/base/log.h"
#include "engine/base/units.h"
#include "engine/program/measured_machine.h"
#include "engine/program/plan_report.h"
#include "engine/train/base_weights.h"
#include "engine/train/checkpoint_name.h"
#include "engine/train/metrics.h"
#include "engine/train/progress.h"
#include "engine/train/resume.h"
#include "engine/train/schedule.h"
#include "engine/train/session.h"
#include "engine/train/verify.h"
#include "recipes/schema/load.h"

namespace dstrain {
namespace {

using Clock = std::chrono::steady_clock;

// A signal can be told in no other way than through a global.
volatile std::sig_atomic_t stop_requested = 0;
volatile std::sig_atomic_t stop_requested_at_s = 0;

/// A scheduler signals a whole job, ranks and agents, and the agents pass it on: what comes within
/// moments of the first is the same request. A later one ends the process.
void request_stop(int number) {
  constexpr int kSameRequestS = 3;
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  const auto now_s = static_cast<std::sig_atomic_t>(now.tv_sec);
  if (stop_requested == 0) {
    stop_requested = 1;
    stop_requested_at_s = now_s;
  } else if (now_s - stop_requested_at_s > kSameRequestS) {
    ::signal(number, SIG_DFL);
    ::raise(number);
  }
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// "never", "epoch" or a number of steps, as steps; 0: never.
std::int64_t interval(const std::string& every, std::int64_t steps_per_epoch) {
  if (every == "never") return 0;
  if (every == "epoch") return steps_per_epoch;
  std::int64_t steps = 0;
  std::from_chars(every.data(), every.data() + every.size(), steps);
  return steps;
}

/// On one line, control characters blanked, at most `most` bytes (a cut character goes, too).
std::string one_line(std::string text, std::size_t most) {
  if (text.size() > most) {
    while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0) == 0x80) --most;
    text.resize(most);
  }
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = ' ';
  }
  return text;
}

/// The end of `text` on one line.
std::string tail(const std::string& text, std::size_t most) {
  std::size_t begin = text.size() > most ? text.size() - most : 0;
  while (begin < text.size() && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) ++begin;
  return one_line(text.substr(begin), most);
}

/// "1 data rank", "4 data ranks".
std::string counted(int count, const char* noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

/// What plan.json is made for: the rates that `dstrain doctor --measure` found for this device,
/// else the built-in ones; in any case this device's memory. A broken file costs the prediction
/// only.
Machine machine_of(const DeviceFacts& device) {
  Machine machine = device.is_cuda() ? h200() : cpu();
  try {
    const auto measured = find_measured(read_measured(measured_file()), device.name);
    if (measured) machine = *measured;
  } catch (const Error&) {
    machine.name += " (machine.json cannot be read)";
  }
  machine.device_memory = device.memory_bytes;
  return machine;
}

RankRecordFile open_record() {
  const char* path = std::getenv(job_environment::kRankRecord);
  return path == nullptr ? RankRecordFile::anonymous() : RankRecordFile::open(path);
}

/// Keeps freed host memory for the next tensor of that size: on the CPU a step would else spend
/// most of its time in mapping fresh pages and zeroing them.
void keep_host_memory() {
  ::mallopt(M_MMAP_THRESHOLD, 32 << 20);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
}

/// In the background: files of many gigabytes are read meanwhile, and only checkpoints need it.
std::shared_future<std::string> hash_base(const World& world, const Recipe& recipe) {
  if (world.rank != 0) return {};
  return std::async(std::launch::async, [recipe] { return base_reference(recipe); }).share();
}

constexpr std::int64_t kTimedStep = 5;  ///< late enough that handles, plans and buffers are made

/// Progress of the preparation of data, as notes that are not too many.
class PreparationNotes final : public ProgressSink {
 public:
  PreparationNotes(Progress& progress, RankRecordFile& record)
      : progress_(progress), record_(record) {}
  void note(const std::string& text) override { progress_.note(text); }
  void progress(double share, const std::string& text) override {
    record_.tick();
    const auto now = Clock::now();
    if (share < 1 && now - last_ < std::chrono::seconds(3)) return;
    last_ = now;
    progress_.note(text);
  }

 private:
  Progress& progress_;
  RankRecordFile& record_;
  Clock::time_point last_ = Clock::now();
};

class Trainer {
 public:
  Trainer(const LoadedRecipe& loaded, const World& world, RankRecordFile& record,
          const std::string& resume, Clock::time_point start);
  void run();

 private:
  void announce();
  void restore();
  void handle(const StepOutcome& outcome);
  [[nodiscard]] std::string describe(const EvaluationTotals& totals);
  [[nodiscard]] double mfu(double step_s) const;
  void enqueue_timed();
  void drain();
  void evaluate();
  void show_answers();
  void save();
  void wait_for_saves();
  void report_saves(bool wait);
  void summarize();
  void report_communication(std::int64_t steps);
  [[nodiscard]] double epoch_of(std::int64_t step) const {
    return static_cast<double>(step) / static_cast<double>(session_.steps_per_epoch());
  }

  const LoadedRecipe& loaded_;
  const Recipe& recipe_;
  const World& world_;
  RankRecordFile& record_;
  Clock::time_point start_;
  Progress progress_;
  PreparationNotes preparation_{progress_, record_};
  std::shared_future<std::string> base_;  ///< rank 0: what the frozen weights are
  RunPlace place_;
  Session session_;
  PlanReport plan_;
  std::optional<MetricsWriter> metrics_;
  std::unique_ptr<CheckpointSaver> saver_;
  std::int64_t first_step_ = 0;
  std::int64_t saved_step_ = -1;
  std::int64_t evaluated_step_ = -1;
  bool stop_ = false;
  StepOutcome last_;
  std::optional<EvaluationTotals> evaluation_;
  std::optional<double> first_step_s_;
  Clock::time_point last_outcome_{};
  Clock::time_point first_outcome_{};
  double useful_flops_ = 0;  ///< of this rank's step
  double smoothed_step_s_ = 0;
  double host_s_ = 0;  ///< work of the host in step kTimedStep, without waiting for data
  Bytes memory_bytes_ = 0;
};

Trainer::Trainer(const LoadedRecipe& loaded, const World& world, RankRecordFile& record,
                 const std::string& resume, Clock::time_point start)
    : loaded_(loaded),
      recipe_(loaded.recipe),
      world_(world),
      record_(record),
      start_(start),
      progress_(world.rank),
      base_(hash_base(world, loaded.recipe)),
      place_(agree_on_place(world, record, loaded.recipe.run.output, loaded.name, resume, base_)),
      session_(loaded.recipe, world, record, &preparation_) {
  const Strategy& strategy = session_.strategy();
  plan_ = make_plan(loaded.name, recipe_, strategy, session_.cost(), machine_of(world.device));
  saver_ = make_saver(world.store, {.root = place_.directory.checkpoints(),
                                    .rank = world.rank,
                                    .world_size = world.size,
                                    .keep = recipe_.run.checkpoint.keep,
                                    .attempt = place_.attempt});
  if (place_.resume) restore();
  if (world.rank == 0) {
    if (std::getenv(job_environment::kRunDirectory) == nullptr) {  // else the launcher wrote it
      write_file_atomically(place_.directory.recipe(), resolved_yaml(loaded));
    }
    write_file_atomically(place_.directory.plan(), plan_json(plan_, strategy, session_.cost()));
    metrics_.emplace(MetricsOptions{.metrics = place_.directory.metrics(),
                                    .events = place_.directory.events(),
                                    .tensorboard = place_.directory.tensorboard(),
                                    .resumed_step = first_step_});
    metrics_->event(place_.resume ? "resumed" : "started", first_step_);
    announce();
  }
  place_.resume.reset();
}

void Trainer::announce() {
  const Strategy& strategy = session_.strategy();
  const BatchPlan& batch = strategy.batch;
  if (std::getenv(job_environment::kRunDirectory) == nullptr) {  // else the launcher has said it
    progress_.note(fmt::format("run directory {}", place_.directory.root().string()));
  }
  for (const std::string& note : session_.notes()) progress_.note(note);
  progress_.note(fmt::format("{} on {} x {}: {}, ZeRO stage {}, {} train steps", recipe_.model.name,
                             world_.size, world_.device.name, strategy.mesh.describe(),
                             recipe_.parallel.zero.stage, session_.total_steps()));
  progress_.note(
      fmt::format("global batch {} = {} x micro-batch {} x {}{}", batch.global,
                  counted(batch.data_ranks, "data rank"), batch.micro,
                  counted(batch.micro_batches, "accumulation step"),
                  batch.fillers() > 0 ? fmt::format(" - {} fillers", batch.fillers()) : ""));
  progress_.note(fmt::format("planned memory per rank: {} allocated",
                             format_bytes(plan_.step.ledger.allocated())));
  if (strategy.recompute) progress_.note("recompute: " + dstrain::describe(*strategy.recompute));
  if (plan_.machine.name != h200().name && plan_.machine.name != cpu().name)
    progress_.note("planned with the rates of " + plan_.machine.name);
  if (first_step_ > 0) progress_.note(fmt::format("resumed at step {}", first_step_));
  if (first_step_ >= session_.total_steps()) {
    progress_.note(fmt::format(
        "nothing to do: the run is complete at step {}; raise run.steps or run.epochs, or start "
        "anew without --resume",
        first_step_));
  }
}

void Trainer::restore() {
  const SectionScope section(record_, RankSection::checkpoint);
  record_.enter(-1, "resume");
  const CheckpointState& state = place_.resume->state();
  if (state.samples != session_.samples_before(state.step)) {
    throw Error(ErrorKind::usage,
                fmt::format("the checkpoint has seen {} samples in {} steps; with batch.global {} "
                            "and {} training samples "
                            "it would be {}",
                            state.samples, state.step, recipe_.batch.global, session_.train_size(),
                            session_.samples_before(state.step)),
                "resume with the data set and batch.global of the run that saved it");
  }
  session_.states().restore(*place_.resume);
  session_.executor().set_control({.loss_scale = state.loss_scale,
                                   .good_steps = static_cast<double>(state.good_steps),
                                   .applied_steps = static_cast<double>(state.optimizer_steps),
                                   .skipped_steps = static_cast<double>(state.skipped_steps)});
  first_step_ = state.step;
  saved_step_ = state.step;
  last_.loss_scale = state.loss_scale;
  last_.good_steps = static_cast<double>(state.good_steps);
  last_.applied_steps = static_cast<double>(state.optimizer_steps);
  last_.skipped_steps = static_cast<double>(state.skipped_steps);
}

void Trainer::run() {
  const std::int64_t total = session_.total_steps();
  const std::int64_t save_every =
      interval(recipe_.run.checkpoint.every, session_.steps_per_epoch());
  const std::int64_t evaluate_every = interval(recipe_.run.evaluate, session_.steps_per_epoch());
  // The host may run this many steps ahead of the device, so that it never waits for the step under
  // way.
  const std::size_t ahead = world_.device.is_cuda() ? 2 : 0;
  const auto due = [&](std::int64_t every, std::int64_t step) {
    return every > 0 && (step % every == 0 || step == total);
  };
  useful_flops_ = useful_flops(session_.strategy().training);
  reset_peak_memory(world_.device.device);
  session_.seek(first_step_);
  record_.enter_section(RankSection::step);
  last_outcome_ = Clock::now();
  while (session_.next_step() < total && !stop_) {
    if (session_.next_step() == first_step_ + kTimedStep) {
      enqueue_timed();
    } else {
      session_.enqueue_step(stop_requested != 0);
    }
    if (session_.executor().pending() > ahead) handle(session_.executor().take_outcome());
    report_saves(/*wait=*/false);
    const std::int64_t step = session_.next_step();
    if (due(save_every, step) || due(evaluate_every, step)) {
      drain();
      if (due(evaluate_every, step) && !stop_) evaluate();
      if (due(save_every, step)) save();
      last_outcome_ = Clock::now();
    }
  }
  drain();
  if (stop_) save();
  wait_for_saves();
  record_.enter_section(RankSection::finish);
  record_.enter(session_.next_step(), "finish");
  if (world_.rank == 0) summarize();
}

/// How long the host needs for a step: with nothing queued before it, so that no call waits for the
/// device to take work.
void Trainer::enqueue_timed() {
  drain();
  const auto begin = Clock::now();
  const double waited_s = session_.waited_for_data_s();
  session_.enqueue_step(stop_requested != 0);
  host_s_ = seconds_since(begin) - (session_.waited_for_data_s() - waited_s);
}

void Trainer::drain() {
  while (session_.executor().pending() > 0) handle(session_.executor().take_outcome());
}

void Trainer::handle(const StepOutcome& outcome) {
  const auto now = Clock::now();
  const double step_s = std::chrono::duration<double>(now - last_outcome_).count();
  last_outcome_ = now;
  if (!first_step_s_) {
    first_step_s_ = seconds_since(start_);
    first_outcome_ = now;
  }
  smoothed_step_s_ = smoothed_step_s_ == 0 ? step_s : 0.9 * smoothed_step_s_ + 0.1 * step_s;
  last_ = outcome;
  stop_ = stop_ || outcome.stop;
  if (outcome.skipped && recipe_.precision.non_finite == NonFinite::stop) {
    throw Error(
        ErrorKind::stop, session_.explain_non_finite(outcome),
        "lower optimizer.lr, or set precision.non_finite: skip to go on without such steps");
  }
  if (world_.rank != 0) return;
  if (outcome.skipped) {
    progress_.note(
        fmt::format("step {}: skipped, a gradient is not finite (loss {}, {} skipped so far)",
                    outcome.step + 1, outcome.loss, outcome.skipped_steps));
    metrics_->event("skipped_step", outcome.step + 1, {{"loss", fmt::format("{}", outcome.loss)}});
  }
  const std::int64_t total = session_.total_steps();
  // Since the first step, so that the time left does not jump with every busy moment.
  const std::int64_t measured = outcome.step - first_step_;
  const double mean_step_s = measured > 0
                                 ? std::chrono::duration<double>(now - first_outcome_).count() /
                                       static_cast<double>(measured)
                                 : step_s;
  // The figures cost a driver call.
  if (world_.device.is_cuda() && outcome.step % 10 == 0) {
    memory_bytes_ = memory_figures(world_.device.device).allocated_peak;
  }
  const auto samples = static_cast<double>(session_.samples_of_step(outcome.step));
  const double sequence = session_.model().sequence;
  const double work = sequence > 0 ? samples * sequence : samples;
  progress_.step({.step = outcome.step + 1,
                  .total_steps = total,
                  .epoch = outcome.step / session_.steps_per_epoch() + 1,
                  .epochs = recipe_.run.epochs,
                  .loss = outcome.loss,
                  .accuracy = outcome.top1,
                  .gradient_norm = outcome.gradient_norm,
                  .rate = work / smoothed_step_s_,
                  .unit = sequence > 0 ? "tok/s" : "img/s",
                  .mfu = mfu(smoothed_step_s_),
                  .step_s = smoothed_step_s_,
                  .memory_bytes = memory_bytes_,
                  .remaining_s = mean_step_s * static_cast<double>(total - outcome.step - 1)});
  metrics_->step({.step = outcome.step + 1,
                  .epoch = epoch_of(outcome.step + 1),
                  .loss = outcome.loss,
                  .accuracy = outcome.top1,
                  .lr = learning_rate(recipe_.optimizer, outcome.step, total),
                  .grad_norm = outcome.gradient_norm,
                  .samples_per_s = samples / step_s,
                  .tokens_per_s = samples * sequence / step_s,
                  .mfu = mfu(step_s),
                  .step_s = step_s,
                  .memory_bytes = memory_bytes_,
                  .loss_scale = outcome.loss_scale,
                  .skipped_steps = static_cast<std::int64_t>(outcome.skipped_steps)});
}

void Trainer::evaluate() {
  const std::int64_t step = session_.next_step();
  const SectionScope section(record_, RankSection::evaluate);
  record_.enter(step, "evaluate");
  const auto begin = Clock::now();
  evaluation_ = session_.evaluate();
  evaluated_step_ = step;
  const double seconds = seconds_since(begin);
  if (world_.rank == 0) {
    progress_.note(fmt::format("evaluation at step {}: {} in {}, {:.0f} samples/s", step,
                               describe(*evaluation_), format_duration(seconds),
                               static_cast<double>(session_.test_size()) / seconds));
    metrics_->evaluation({.step = step,
                          .epoch = epoch_of(step),
                          .loss = evaluation_->loss,
                          .accuracy = evaluation_->top1,
                          .top5 = evaluation_->top5,
                          .targets = static_cast<std::int64_t>(evaluation_->targets),
                          .seconds = seconds});
  }
  if (recipe_.run.generate > 0) show_answers();
}

std::string Trainer::describe(const EvaluationTotals& totals) {
  if (session_.model().is_language()) {
    return fmt::format(
        "loss {:.4f}, perplexity {:.2f}, next-token accuracy {:.2f}% on {:.0f} tokens", totals.loss,
        std::exp(totals.loss), totals.top1 * 100, totals.targets);
  }
  return fmt::format("accuracy {:.2f}%, top-5 {:.2f}%, loss {:.4f} on {:.0f} samples",
                     totals.top1 * 100, totals.top5 * 100, totals.loss, totals.targets);
}

/// A few answers of the model as it is now, so that a person sees what it learned.
void Trainer::show_answers() {
  const std::int64_t step = session_.next_step();
  record_.enter(step, "generate");
  const std::vector<GeneratedAnswer> answers = session_.generate();
  if (world_.rank != 0) return;
  constexpr std::size_t kMostShown = 300;
  for (const GeneratedAnswer& answer : answers) {
    progress_.note(fmt::format("  prompt   ...{}", tail(answer.prompt, kMostShown)));
    progress_.note(fmt::format("  expected {}", one_line(answer.expected, kMostShown)));
    progress_.note(fmt::format("  answer   {}", one_line(answer.generated, kMostShown)));
    metrics_->event(
        "generated", step,
        {{"prompt", answer.prompt}, {"expected", answer.expected}, {"answer", answer.generated}});
  }
}

/// Chowdhery et al. 2022, arXiv:2204.02311, appendix B: useful FLOPs of the step, without
/// recomputation, over what the datasheets of all GPUs promise.
double Trainer::mfu(double step_s) const {
  const double peak = datasheet_flops(world_.device.name);
  return peak > 0 ? useful_flops_ / step_s / peak : 0;
}

void Trainer::save() {
  const std::int64_t step = session_.next_step();
  if (step == saved_step_) return;
  const SectionScope section(record_, RankSection::checkpoint);
  record_.enter(step, "checkpoint");
  saver_->start({.step = step,
                 .samples = session_.samples_before(step),
                 .optimizer_steps = static_cast<std::int64_t>(last_.applied_steps),
                 .loss_scale = last_.loss_scale,
                 .good_steps = static_cast<std::int64_t>(last_.good_steps),
                 .skipped_steps = static_cast<std::int64_t>(last_.skipped_steps),
                 .world_size = world_.size,
                 .base = base_.valid() ? base_.get() : std::string(),
                 .recipe = resolved_yaml(loaded_)},
                session_.states().snapshot());
  saved_step_ = step;
  if (!recipe_.run.checkpoint.asynchronous) wait_for_saves();
}

/// All ranks wait here together: their votes go through the store, on the saver's thread.
void Trainer::wait_for_saves() {
  const SectionScope section(record_, RankSection::checkpoint);
  record_.enter(session_.next_step(), "wait for the checkpoint");
  report_saves(/*wait=*/true);
}

void Trainer::report_saves(bool wait) {
  while (const auto result = wait ? saver_->wait() : saver_->poll()) {
    if (world_.rank != 0) continue;
    if (result->ok) {
      progress_.note(fmt::format("checkpoint {} ({} in {})", result->path.string(),
                                 format_bytes(result->bytes), format_duration(result->seconds)));
      metrics_->event("checkpoint_saved",
                      parse_checkpoint_name(result->path).value_or(last_.step + 1),
                      {{"path", result->path.string()}});
    } else {
      progress_.note(fmt::format(
          "warning: checkpoint failed: {}; training goes on, earlier checkpoints are untouched",
          result->error));
      metrics_->event("checkpoint_failed", last_.step + 1, {{"error", result->error}});
    }
  }
}

void Trainer::summarize() {
  const std::int64_t done = session_.next_step();
  metrics_->event(stop_ ? "stopped" : "finished", done);
  progress_.note(fmt::format("{} after {} of {} steps in {}; first step {} after start",
                             stop_ ? "stopped" : "done", done, session_.total_steps(),
                             format_duration(seconds_since(start_)),
                             format_duration(first_step_s_.value_or(0))));
  if (evaluation_) {
    progress_.note(fmt::format("test {} at step {}", describe(*evaluation_), evaluated_step_));
  }
  if (last_.skipped_steps > 0) {
    progress_.note(fmt::format("{:.0f} steps were skipped because a gradient was not finite",
                               last_.skipped_steps));
  }
  if (world_.device.is_cuda()) {
    if (host_s_ > 0) {
      progress_.note(fmt::format("host work: {} of a step of {}", format_duration(host_s_),
                                 format_duration(smoothed_step_s_)));
    }
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
  report_communication(done - first_step_);
  progress_.note(
      fmt::format("metrics, logs and checkpoints: {}", place_.directory.root().string()));
}

/// What the communicators counted, to be held against the plan's bytes per step.
void Trainer::report_communication(std::int64_t steps) {
  const Communicators& all = session_.communicators();
  for (const auto& [purpose, communicator] : {std::pair{"parameters", &all.gather},
                                              {"gradients", &all.reduce},
                                              {"gradients of replicas", &all.replica},
                                              {"norm and metrics", &all.batch}}) {
    if ((*communicator)->size() == 1 || steps == 0) continue;
    for (const CallCount& count : (*communicator)->counts()) {
      if (count.calls == 0) continue;
      const auto share = 1.0 / static_cast<double>(steps);
      progress_.note(
          fmt::format("communication of rank 0: {} of {}: {:.1f} calls and {} a step",
                      count.operation, purpose, static_cast<double>(count.calls) * share,
                      format_bytes(static_cast<Bytes>(static_cast<double>(count.bytes) * share))));
    }
  }
}

int run_verification(const LoadedRecipe& loaded, const World& world, int steps,
                     RankRecordFile& record) {
  Progress progress(world.rank);
  const std::vector<VerifyStep> result = verify_strategy(
      loaded.recipe, world, steps, record, [&](const std::string& text) { progress.note(text); });
  if (world.rank != 0) return 0;
  progress.note(verify_report(result, loaded.recipe, world.size));
  return std::all_of(result.begin(), result.end(), [](const VerifyStep& s) { return s.passed(); })
             ? 0
             : 1;
}

/// What this process says of itself when it fails, before anything is unwound: the agent gives a
/// slow end no time.
template <class Body>
void recording_failure(RankRecordFile& record, const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    record.fail(error.what(), exit_code(error.kind()));
    throw;
  } catch (const std::exception& error) {
    record.fail(error.what());
    throw;
  }
}

void install_stop_handler() {
  struct sigaction action{};
  action.sa_handler = request_stop;
  action.sa_flags = SA_RESTART;
  for (const int number : {SIGTERM, SIGINT, SIGUSR1}) ::sigaction(number, &action, nullptr);
}

}  // namespace

int train(const TrainOptions& options) {
  const auto start = Clock::now();
  ::signal(SIGPIPE,
           SIG_IGN);  // a peer or reader that is gone is an error to handle, not a reason to die
  keep_host_memory();
  RankRecordFile record = open_record();
  int code = 0;
  recording_failure(record, [&] {
    record.enter(-1, "read recipe");
    const LoadedRecipe loaded = load_recipe(options.recipe, options.overrides);
    record.enter(-1, "meet the other ranks");
    const World world = [&] {
      const CollectiveScope scope(&record, "connect", world_size_from_environment());
      return world_from_environment(loaded.recipe.parallel.backend);
    }();
    if (options.verify_steps > 0) {
      code = run_verification(loaded, world, options.verify_steps, record);
      return;
    }
    install_stop_handler();  // before, there is nothing to save and a signal just ends the rank
    Trainer trainer(loaded, world, record, options.resume, start);
    recording_failure(record, [&] { trainer.run(); });
  });
  return code;
}

}  // namespace dstrain
