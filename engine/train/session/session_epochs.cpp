#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/data/mixture.h"
#include "engine/recipe/datasets.h"
#include "engine/recipe/families.h"
#include "engine/recipe/phases.h"
#include "engine/train/session/learning_rate.h"
#include "engine/train/session/session.h"

/// Which samples a session's steps and epochs have.
namespace dstrain {

std::int64_t Session::samples_per_epoch() const {
  return dstrain::samples_per_epoch(train_size(), recipe_.batch.global,
                                    recipe_.data.last == LastStep::drop);
}

std::int64_t Session::steps_per_epoch() const {
  return dstrain::steps_per_epoch(samples_per_epoch(), recipe_.batch.global);
}

std::int64_t Session::steps_before(int phase) const {
  const auto length = [&](int steps, int epochs) {
    return steps > 0 ? steps : epochs * steps_per_epoch();
  };
  if (recipe_.phases.empty()) return phase == 0 ? 0 : length(recipe_.run.steps, recipe_.run.epochs);
  std::int64_t steps = 0;
  for (int p = 0; p < phase; ++p) {
    const PhaseConfig& earlier = recipe_.phases[to_index(p)];
    steps += length(earlier.steps, earlier.epochs);
  }
  return steps;
}

std::int64_t Session::total_steps() const { return steps_before(num_phases(recipe_)); }

double Session::learning_rate(std::int64_t step) const {
  return dstrain::learning_rate(
      recipe_.optimizer, step - first_step(),
      {.steps = end_step() - first_step(), .steps_per_epoch = steps_per_epoch()});
}

std::int64_t Session::samples_of_step(std::int64_t step) const {
  const std::int64_t begin = step % steps_per_epoch() * recipe_.batch.global;
  return std::min<std::int64_t>(recipe_.batch.global, samples_per_epoch() - begin);
}

std::int64_t Session::targets_of_step(std::int64_t step) const {
  const std::int64_t samples = samples_of_step(step);
  if (!model_.is_language()) return samples;
  // Every rank must know how many tokens count in the whole global batch.
  const std::int64_t epoch = step / steps_per_epoch();
  const std::int64_t begin = step % steps_per_epoch() * recipe_.batch.global;
  std::int64_t targets = 0;
  for (std::int64_t i = 0; i < samples; ++i)
    targets += train_->targets(
        trained_sample(*train_, recipe_.run.seed, epoch, begin + i, samples_per_epoch()));
  return targets;
}

std::int64_t Session::samples_before(std::int64_t step) const {
  return step / steps_per_epoch() * samples_per_epoch() +
         step % steps_per_epoch() * recipe_.batch.global;
}

void Session::describe_mixture() {
  const Mixture* mixture = this->mixture();
  if (mixture == nullptr) return;
  // Repeating data more often than this is worth little: arXiv:2305.16264, sec. 5.
  constexpr double kOften = 4;
  const std::int64_t end = samples_before(total_steps());
  std::string shares, often;
  for (int i = 0; i < static_cast<int>(mixture->members().size()); ++i) {
    const Mixture::Member& member = mixture->members()[to_index(i)];
    shares += fmt::format("{}{} {:.1f} % ({} samples)", i == 0 ? "" : ", ", member.name,
                          100 * mixture->share(i), member.size);
    if (const double epochs = mixture->epochs_before(i, end); epochs > kOften)
      often += fmt::format("{}{} {:.1f} times", often.empty() ? "" : ", ", member.name, epochs);
  }
  notes_.push_back("mixture: " + shares);
  notes_.push_back(fmt::format("epochs of the run: {}; one of the mixture is {} samples",
                               mixture->describe_epochs(end), train_size()));
  if (!often.empty())
    notes_.push_back(
        fmt::format("warning: the run sees all of {}: beyond {:.0f} epochs samples teach little "
                    "more; lower the "
                    "weight, or shorten the run",
                    often, kOften));
}

void Session::look_at_last_step() {
  if (samples_per_epoch() == 0) {
    throw Error(ErrorKind::usage,
                fmt::format("data.last: drop leaves no step: the training split has {} samples, "
                            "batch.global is {}",
                            train_size(), recipe_.batch.global),
                "lower batch.global, or use data.last: fill");
  }
  const std::int64_t left = samples_per_epoch() % recipe_.batch.global;
  const PublishedModel* model = published_model(recipe_.model.name);
  const BatchNormOver over = recipe_.batch_norm.over;
  if (left == 0 || model == nullptr || !model->batch_norm || over == BatchNormOver::running) return;
  // Fewer samples for one mean and variance than this are few.
  constexpr std::int64_t kFew = 16;
  const BatchPlan& batch = strategy_->batch;
  const std::int64_t parts =
      batch.micro_batches * (over == BatchNormOver::ranks ? 1 : batch.data_ranks);
  const std::int64_t min = std::max<std::int64_t>(1, left / parts) * frames_of(recipe_);
  if (min >= kFew) return;
  notes_.push_back(fmt::format(
      "warning: the last step of each epoch has {} of {} samples, and batch norm takes mean and "
      "variance of as few as {}: its losses jump. data.last: drop leaves that step out",
      left, recipe_.batch.global, min));
}

}  // namespace dstrain
