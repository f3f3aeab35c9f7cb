#include "engine/train/measure/step_timer.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace dstrain {
namespace {

constexpr double kEventS = 3.2e-6;
constexpr double kMaxShare = 0.004;
constexpr int kMinInterval = 4;

std::chrono::nanoseconds in_nanoseconds(double seconds) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(seconds));
}

}  // namespace

int timing_interval(const Program& training, double step_s) {
  double events = 2;
  for (const Action& action : training.actions) {
    const bool computes = action.lane == Lane::compute;
    if ((!computes && !outlasts_step(action.lane)) || !action.comm.empty()) events += 2;
    if (!computes) continue;
    ++events;  // a new phase, at times
    events += 2 * static_cast<double>(action.after.size() + action.after_previous.size());
  }
  if (step_s <= 0) return kMinInterval;
  return std::max(kMinInterval,
                  static_cast<int>(std::ceil(events * kEventS / (kMaxShare * step_s))));
}

StepTimer::StepTimer(c10::Device device, int every, RankRecordFile& record)
    : device_(device), every_(every), record_(record) {}

std::size_t StepTimer::mark(const Stream& stream) {
  if (present_->used == present_->events.size())
    present_->events.emplace_back(device_, Event::Timing::yes);
  present_->events[present_->used].record(stream);
  return present_->used++;
}

void StepTimer::begin(std::int64_t step, const Stream& compute) {
  if (!device_.is_cuda()) record_.begin_step();
  if (every_ == 0 || steps_++ % every_ != 0) return;
  Step timed;
  if (!free_.empty()) {
    timed = std::move(free_.back());
    free_.pop_back();
  }
  timed.step = step;
  timed.used = 0;
  timed.spans.clear();
  present_ = &under_way_.emplace_back(std::move(timed));
  phase_ = Span{.kind = Span::Kind::phase,
                .index = static_cast<std::size_t>(Phase::forward),
                .begin = mark(compute)};
}

void StepTimer::enter(Phase phase, const Stream& compute) {
  const auto index = static_cast<std::size_t>(phase);
  if (present_ == nullptr || phase_->index == index) return;
  phase_->end = mark(compute);
  present_->spans.push_back(*phase_);
  phase_ = Span{.kind = Span::Kind::phase, .index = index, .begin = phase_->end};
}

void StepTimer::wait(const Event& event, Lane lane, bool communicates, const Stream& compute) {
  if (present_ == nullptr || !device_.is_cuda()) {
    event.wait(compute);
    return;
  }
  Span span{.kind = Span::Kind::wait,
            .index = static_cast<std::size_t>(lane),
            .phase = phase_->index,
            .communicates = communicates,
            .begin = mark(compute)};
  event.wait(compute);
  span.end = mark(compute);
  present_->spans.push_back(span);
}

void StepTimer::begin_action(Lane /*lane*/, const Stream& stream) {
  if (present_ != nullptr) action_begin_ = mark(stream);
}

void StepTimer::end_action(Lane lane, bool communicates, const Stream& stream) {
  if (present_ == nullptr) return;
  present_->spans.push_back({.kind = Span::Kind::action,
                             .index = static_cast<std::size_t>(lane),
                             .phase = phase_->index,
                             .communicates = communicates,
                             .begin = *action_begin_,
                             .end = mark(stream)});
  action_begin_.reset();
}

void StepTimer::end(const Stream& compute) {
  if (!device_.is_cuda()) record_.end_step();
  if (present_ == nullptr) return;
  phase_->end = mark(compute);
  present_->spans.push_back(*phase_);
  phase_.reset();
  present_ = nullptr;
}

StepTimes StepTimer::sum(const Step& step) const {
  StepTimes times;
  for (const Span& span : step.spans) {
    // The event of the step's end does not cover all: the last phase ends right behind it, and
    // nothing in the step waits for sums that only offloaded updates read.
    step.events[span.end].synchronize();
    const double seconds = step.events[span.end].seconds_since(step.events[span.begin]);
    const bool computes = span.index == static_cast<std::size_t>(Lane::compute);
    switch (span.kind) {
      case Span::Kind::phase:
        times.phase_s.at(span.index) += seconds;
        break;
      case Span::Kind::wait:
        times.wait_s.at(span.index) += seconds;
        if (span.communicates) {
          times.exposed_comm_s += seconds;
          times.waits_in_s.at(span.phase) += seconds;
        }
        break;
      case Span::Kind::action:
        if (!computes) times.lane_s.at(span.index) += seconds;
        if (!computes && !device_.is_cuda()) {
          times.wait_s.at(span.index) += seconds;
          times.waits_in_s.at(span.phase) += seconds;
        }
        if (span.communicates && (computes || !device_.is_cuda())) times.exposed_comm_s += seconds;
        break;
    }
  }
  return times;
}

std::optional<StepTimes> StepTimer::take(std::int64_t step) {
  if (under_way_.empty() || under_way_.front().step != step) return {};
  const StepTimes times = sum(under_way_.front());
  free_.push_back(std::move(under_way_.front()));
  under_way_.pop_front();
  if (device_.is_cuda()) {
    double all_s = 0;
    for (const double seconds : times.phase_s) all_s += seconds;
    record_.add_step(in_nanoseconds(all_s), in_nanoseconds(times.exposed_comm_s));
  }
  return times;
}

}  // namespace dstrain
