#include "engine/train/session/trainer.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <utility>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/host_name.h"
#include "engine/base/job_environment.h"
#include "engine/checkpoint/base_weights.h"
#include "engine/samples/share.h"
#include "engine/trace/request.h"
#include "engine/train/measure/device_machine.h"
#include "engine/train/session/learning_rate.h"
#include "engine/train/session/stop_signal.h"

namespace dstrain {
namespace {

/// What agree_on_place has found equal; else in the background: files of many gigabytes are read
/// meanwhile, and only checkpoints need it.
std::shared_future<std::string> hash_base(const World& world, const Recipe& recipe,
                                          const RunPlace& place) {
  if (world.rank != 0) return {};
  if (place.resume && !place.new_phase) {
    std::promise<std::string> known;
    known.set_value(place.resume->state().base);
    return known.get_future().share();
  }
  return std::async(std::launch::async, [recipe] { return base_reference(recipe); }).share();
}

constexpr std::int64_t kTimedStep = 5;  ///< late enough that handles, plans and buffers are made

}  // namespace

Trainer::Trainer(const LoadedRecipe& loaded, int phase, const World& world, RankRecordFile& record,
                 RunPlace place, Clock::time_point start)
    : loaded_(loaded),
      recipe_(phase_recipe(loaded.recipe, phase)),
      world_(world),
      record_(record),
      progress_(make_progress(world.rank)),
      place_(std::move(place)),
      base_(hash_base(world, recipe_, place_)),
      session_(loaded.recipe, world, record, &preparation_, phase),
      save_clock_(recipe_.run.checkpoint.every, world.size, Clock::now()),
      best_(recipe_.run.best) {
  first_step_ = session_.first_step();
  // The phase before left cached memory, in other sizes.
  if (phase > 0) release_cached_memory(world.device.device);
  plan_ = make_plan(loaded.name, recipe_, session_.strategy(), session_.cost(),
                    machine_of_rank(world, session_.threads()));
  saver_ = make_saver(world.store, {.root = place_.directory.checkpoints(),
                                    .rank = world.rank,
                                    .world_size = world.size,
                                    .keep = recipe_.run.checkpoint.keep,
                                    .attempt = place_.attempt,
                                    .verify_bytes_per_s = 1e6 * recipe_.run.checkpoint.verify_rate,
                                    .local_ranks = world.local_size,
                                    .host = host_name()});
  skipped_.restart(first_loss_scale(recipe_.precision));
  if (place_.resume) restore();
  if (world.rank == 0) open_report(start);
  place_.resume.reset();
  lines_ = std::make_unique<RankLines>(place_.directory.rank_lines(world.rank), first_step_, world,
                                       session_.communicators());
  start_samples();
  const std::string& output = recipe_.trace.output;
  trace_ = std::make_unique<TraceWindow>(
      recipe_.trace, world, session_, record_, plan_.step,
      output.empty() ? place_.directory.traces() : std::filesystem::path(output),
      place_.directory.root().filename().string(), first_step_);
}

void Trainer::start_samples() {
  if (world_.local_rank != 0 || recipe_.metrics.sample_s == 0) return;
  sampler_ = std::make_unique<Sampler>(
      SamplerOptions{.folder = place_.directory.root(),
                     .suffix = world_.rank == 0 ? "" : "-" + host_name(),
                     .interval_s = look_interval(recipe_.metrics.sample_s, world_.rank == 0,
                                                 world_.size / world_.local_size)});
}

/// Beside the report, the files that say what this run is.
void Trainer::open_report(Clock::time_point start) {
  if (std::getenv(job_environment::kRunDirectory) == nullptr) {  // else the launcher wrote it
    write_file_atomically(place_.directory.recipe(), resolved_yaml(loaded_));
  }
  write_file_atomically(place_.directory.plan(),
                        plan_json(plan_, session_.strategy(), session_.cost()));
  std::vector<std::string> changes;
  if (place_.resume != nullptr && !place_.new_phase)
    changes = changes_since(place_.resume->state(), loaded_, session_.train_size());
  report_.emplace(world_, place_.directory, session_, plan_, *progress_, record_, first_step_,
                  start, std::move(changes));
  report_->begin(place_.new_phase           ? RunReport::Begin::next_phase
                 : place_.resume != nullptr ? RunReport::Begin::resumed
                                            : RunReport::Begin::started);
}

void Trainer::restore() {
  const SectionScope section(record_, RankSection::checkpoint);
  record_.enter(-1, "resume");
  const CheckpointState& state = place_.resume->state();
  // Other programs count other samples in the last step of an epoch.
  if (state.origin.empty() && state.samples != session_.samples_before(state.step)) {
    throw Error(ErrorKind::usage,
                fmt::format("the checkpoint has seen {} samples in {} steps; with batch.global {} "
                            "and {} training samples "
                            "it would be {}",
                            state.samples, state.step, recipe_.batch.global, session_.train_size(),
                            session_.samples_before(state.step)),
                "resume with the data set and batch.global of the run that saved it");
  }
  if (!recipe_.phases.empty() &&
      (state.step < session_.first_step() || state.step > session_.end_step())) {
    throw Error(
        ErrorKind::usage,
        fmt::format("the checkpoint is of step {} in phase {}, which goes from step {} to "
                    "{} here",
                    state.step, session_.phase() + 1, session_.first_step(), session_.end_step()),
        "resume with the phases of the run that saved it");
  }
  if (place_.new_phase) {
    session_.states().begin_phase(*place_.resume);
  } else {
    session_.states().restore(*place_.resume);
  }
  const bool fixed = recipe_.precision.loss_scale.fixed > 0;
  last_.loss_scale = fixed ? first_loss_scale(recipe_.precision) : state.loss_scale;
  last_.good_steps = static_cast<double>(state.good_steps);
  // Moments that begin anew are at their first update.
  last_.applied_steps = place_.new_phase ? 0 : static_cast<double>(state.optimizer_steps);
  last_.skipped_steps = static_cast<double>(state.skipped_steps);
  last_.tolerated_steps = static_cast<double>(state.tolerated_steps);
  session_.executor().set_control({.loss_scale = last_.loss_scale,
                                   .good_steps = last_.good_steps,
                                   .applied_steps = last_.applied_steps,
                                   .skipped_steps = last_.skipped_steps,
                                   .tolerated_steps = last_.tolerated_steps});
  first_step_ = state.step;
  if (place_.resumes_here) saved_step_ = state.step;
  saved_ = place_.checkpoint;
  skipped_.restart(last_.loss_scale, last_.tolerated_steps);
  if (recipe_.run.best.metric == BestMetric::none || !place_.resumes_here) return;
  best_.take(place_.directory.root(), first_step_);
  gave_up_ = !place_.new_phase && !best_.is_patient();
}

void Trainer::run() {
  const std::int64_t total = session_.end_step();
  const std::int64_t save_every = recipe_.run.checkpoint.every.in_steps(session_.steps_per_epoch());
  const std::int64_t evaluate_every = recipe_.run.evaluate.in_steps(session_.steps_per_epoch());
  // One step is queued behind the one under way, so that the device never waits for the host.
  const std::size_t ahead = world_.device.is_cuda() ? 1 : 0;
  const auto due = [&](std::int64_t every, std::int64_t step) {
    return every > 0 && (step % every == 0 || step == total);
  };
  const bool saves = !recipe_.run.checkpoint.every.is_never();
  save_clock_.restart(Clock::now());
  if (const std::string reason = save_clock_.reason(); report_ && !reason.empty())
    report_->note(reason);
  reset_peak_memory(world_.device.device);
  session_.seek(first_step_);
  record_.enter_section(RankSection::step);
  bool save_due = false;
  while (session_.next_step() < total && !stop_ && !gave_up_) {
    if (trace_->changes_before(session_.next_step())) {
      drain();
      trace_->change_before(session_.next_step());
    }
    if (session_.next_step() == first_step_ + kTimedStep) {
      enqueue_timed();
    } else {
      enqueue();
    }
    const std::int64_t step = session_.next_step();
    // The first step's outcome is shown at once: enqueuing the second one may take as long.
    if (step == first_step_ + 1) drain();
    if (session_.executor().pending() > ahead) handle(session_.executor().take_outcome());
    report_saves(/*wait=*/false);
    save_due = save_due || due(save_every, step) || step == save_at_;
    if (save_due || due(evaluate_every, step)) {
      drain();
      if (due(evaluate_every, step) && !stop_) evaluate();
      save_due = save_due || std::exchange(gained_, false);
      // Skipped steps leave what may be broken: they wait for a good one, or for the end.
      if (save_due && skipped_.length() == 0) {
        save();
        save_due = false;
      }
    }
  }
  drain();
  finish_trace();
  if (gave_up_ && report_)
    report_->note(
        fmt::format("stopped at step {}: {} evaluations without a gain (run.best.patience)",
                    session_.next_step(), best_.without_gain()));
  if (stop_ || saves || goes_on()) save();
  wait_for_saves();
  require_saved();
  session_.executor().finish_updates();
  const bool last = stop_ || !goes_on();
  record_.enter_section(last ? RankSection::finish : RankSection::init);
  record_.enter(session_.next_step(), last ? "finish" : "end the phase");
  if (report_ && best_.best()) report_->note("best: " + best_.text());
  if (report_)
    report_->end(stop_, last_.skipped_steps, host_s_,
                 sampler_ ? sampler_->summary() : SampleSummary());
}

void Trainer::enqueue() {
  const auto begin = Clock::now();
  const double waited_s = session_.waited_for_data_s();
  const bool traced = trace_->observes(session_.next_step());
  session_.enqueue_step(
      {.stop = stop_requested(), .trace_steps = trace_requested(), .save = save_requested()});
  const double data_wait_s = session_.waited_for_data_s() - waited_s;
  enqueued_.push_back(
      {.host = {.data_wait_s = data_wait_s, .work_s = seconds_since(begin) - data_wait_s},
       .traced = traced});
}

/// Rank 0 alone looks, once a second.
int Trainer::trace_requested() {
  if (world_.rank != 0 || Clock::now() < next_look_) return 0;
  next_look_ = Clock::now() + std::chrono::seconds(1);
  return trace::take_request(place_.directory.root());
}

bool Trainer::save_requested() {
  const auto now = Clock::now();
  if (world_.rank != 0 || !save_clock_.is_due(now)) return false;
  save_clock_.restart(now);
  if (!saver_->busy()) return true;
  report_->skipped_checkpoint(session_.next_step(), saved_step_, save_clock_.interval_s());
  return false;
}

void Trainer::enqueue_timed() {
  drain();
  enqueue();
  host_s_ = enqueued_.back().host.work_s;
}

void Trainer::finish_trace() {
  trace_->finish(session_.next_step());
  show_trace_notes();
}

/// Rank 0's notes only: the others' files lie beside its own.
void Trainer::show_trace_notes() {
  for (const std::string& note : trace_->take_notes()) {
    if (report_) report_->note(note);
  }
}

void Trainer::drain() {
  while (session_.executor().pending() > 0) handle(session_.executor().take_outcome());
}

void Trainer::handle(const StepOutcome& outcome) {
  skipped_.add(outcome.skipped, outcome.loss_scale, outcome.tolerated_steps);
  last_ = outcome;
  stop_ = stop_ || outcome.stop;
  // When outcomes are handled two steps may have been enqueued on one rank, one on another.
  if (outcome.trace_steps > 0) trace_->request(outcome.trace_steps, outcome.step + 2);
  if (outcome.save) save_at_ = outcome.step + 2;
  const Enqueued enqueued = enqueued_.front();
  enqueued_.pop_front();
  lines_->step(outcome, enqueued.host, enqueued.traced);
  if (report_) {
    if (const auto sample = sampler_ ? sampler_->take_newest() : std::nullopt)
      report_->host(*sample);
    report_->step(outcome, enqueued.host, enqueued.traced);
  }
  if (outcome.replicas)
    require_equal(session_.look_at_replicas(outcome), "weights", outcome.step + 1);
  show_trace_notes();
  const bool at_once = recipe_.precision.non_finite == NonFinite::stop;
  if (skipped_.length() >= (at_once ? 1 : recipe_.precision.max_skipped)) give_up(outcome);
}

/// All ranks know of it; the report is to name one that is wrong.
void Trainer::require_equal(const std::optional<Session::WrongReplica>& wrong, const char* what,
                            std::int64_t steps) {
  if (report_) report_->compared_replicas(what, steps, wrong ? wrong->ranks : "");
  if (!wrong) return;
  throw Error(wrong->own ? ErrorKind::stop : ErrorKind::again, wrong->text,
              fmt::format("{}look at memory and processors there; --resume auto goes on from the "
                          "last checkpoint, whose states were compared before they were saved",
                          wrong->ranks.empty() ? "" : wrong->ranks + ": "));
}

/// Collective.
void Trainer::give_up(const StepOutcome& outcome) {
  wait_for_saves();  // one that is under way is kept or refused with a word
  const Session::NonFinite found = session_.explain_non_finite(outcome);
  // All ranks know of it; the report is to name the one where it began.
  const bool own = found.rank < 0 || found.rank == world_.rank;
  const std::string streak =
      skipped_.length() > 1
          ? fmt::format("; steps {} to {} were all skipped (precision.max_skipped: {})",
                        outcome.step + 2 - skipped_.length(), outcome.step + 1,
                        recipe_.precision.max_skipped)
          : "";
  throw Error(own ? ErrorKind::stop : ErrorKind::again, found.text + streak,
              recipe_.precision.non_finite == NonFinite::stop
                  ? "lower optimizer.lr, or set precision.non_finite: skip to go on without such "
                    "steps"
                  : "lower optimizer.lr, then start again with --resume auto");
}

void Trainer::evaluate() {
  const std::int64_t step = session_.next_step();
  const SectionScope section(record_, RankSection::evaluate);
  record_.enter(step, "evaluate");
  const auto begin = Clock::now();
  const EvaluationTotals totals = session_.evaluate();
  const std::optional<EvaluationTotals> average = session_.evaluate_average();
  if (report_) report_->evaluation(totals, average, seconds_since(begin));
  std::vector<GeneratedAnswer> answers;
  if (recipe_.run.generate > 0) {
    record_.enter(step, "generate");
    answers = session_.generate();
  }
  const AnswerFigures figures = mean_figures(answers);
  if (report_) report_->end_evaluation(answers, figures);
  gained_ = note_best(average ? *average : totals, figures);
  if (report_ && (gained_ || recipe_.run.best.metric == BestMetric::none))
    report_->confusion(average ? *average : totals);
}

bool Trainer::note_best(const EvaluationTotals& totals, const AnswerFigures& answers) {
  const auto value = [&] {
    switch (recipe_.run.best.metric) {
      case BestMetric::accuracy:
        return totals.top1;
      case BestMetric::top5:
        return totals.top5;
      case BestMetric::perplexity:
        return std::exp(totals.loss);
      case BestMetric::exact_match:
        return answers.exact_match;
      case BestMetric::f1:
        return answers.f1;
      case BestMetric::right_answers:
        return answers.right_answers;
      case BestMetric::none:
      case BestMetric::loss:
        break;
    }
    return totals.loss;
  };
  if (recipe_.run.best.metric == BestMetric::none) return false;
  // Behind skipped steps the state is not saved.
  const bool gain =
      best_.add(session_.next_step(), skipped_.length() == 0 ? value() : std::nan(""));
  gave_up_ = !best_.is_patient();
  if (world_.rank == 0) best_.write(place_.directory.root());
  return gain;
}

void Trainer::save() {
  const std::int64_t step = session_.next_step();
  if (step == saved_step_) return;
  const SectionScope section(record_, RankSection::checkpoint);
  record_.enter(step, "checkpoint");
  const auto begin = Clock::now();
  session_.executor().finish_updates();  // one that has failed leaves half a state
  if (session_.compares_states()) require_equal(session_.compare_states(), "states", step);
  saver_->wait_until_read();  // copies for two saves at once would be too many
  CheckpointPart part = session_.states().snapshot(session_.room_for_copies(world_));
  const bool live = part.live;
  saver_->start({.step = step,
                 .phase = session_.phase(),
                 .samples = session_.samples_before(step),
                 .optimizer_steps = static_cast<std::int64_t>(last_.applied_steps),
                 .loss_scale = last_.loss_scale,
                 .good_steps = static_cast<std::int64_t>(last_.good_steps),
                 .skipped_steps = static_cast<std::int64_t>(last_.skipped_steps),
                 .tolerated_steps = static_cast<std::int64_t>(last_.tolerated_steps),
                 .world_size = world_.size,
                 .train_samples = session_.train_size(),
                 .base = base_.valid() ? base_.get() : std::string(),
                 .recipe = resolved_yaml(loaded_),
                 .class_names = session_.model().class_names},
                std::move(part), /*prune=*/skipped_.length() == 0);
  if (live) saver_->wait_until_read();  // the next step would change what is read
  saved_step_ = step;
  stall_s_ += seconds_since(begin);
  if (!recipe_.run.checkpoint.asynchronous) wait_for_saves();
}

/// All ranks wait here together: their votes go through the store, on the saver's thread.
void Trainer::wait_for_saves() {
  const SectionScope section(record_, RankSection::checkpoint);
  record_.enter(session_.next_step(), "wait for the checkpoint");
  report_saves(/*wait=*/true);
}

void Trainer::report_saves(bool wait) {
  const auto next = [&] {
    const auto begin = Clock::now();
    auto result = wait ? saver_->wait() : saver_->poll();
    if (wait) stall_s_ += seconds_since(begin);
    return result;
  };
  while (const auto result = next()) {
    if (report_) report_->checkpoint(*result, last_.step + 1, stall_s_);
    save_clock_.add_stall(std::exchange(stall_s_, 0));
    failed_save_ = result->ok ? std::nullopt : result;
    if (result->ok) saved_ = result->path;
  }
  while (const auto result = saver_->verified()) {
    if (report_) report_->verified(*result, last_.step + 1);
  }
}

RunPlace Trainer::next_place() const {
  return {.directory = place_.directory,
          .attempt = place_.attempt,
          .resume = CheckpointReader::open_manifest(saved_),
          .checkpoint = saved_,
          .resumes_here = true,
          .new_phase = true};
}

void Trainer::require_saved() const {
  if (!failed_save_) return;
  const ErrorKind kind = failed_save_->kind;
  throw Error(kind,
              fmt::format("the state after step {} is not saved: {}", session_.next_step(),
                          failed_save_->error),
              kind == ErrorKind::stop    ? "lower optimizer.lr, then start again with --resume auto"
              : kind == ErrorKind::again ? "start again with --resume auto"
                                         : "make room, then start again with --resume auto");
}

}  // namespace dstrain
