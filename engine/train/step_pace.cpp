#include "engine/train/step_pace.h"

#include <chrono>

namespace dstrain {

StepPace::StepPace(c10::Device device, RankRecordFile& record)
    : device_(device), record_(record), begin_(timed()), end_(timed()) {}

void StepPace::begin(const Stream& compute) {
  if (!device_.is_cuda()) {
    record_.begin_step();
    return;
  }
  if (steps_++ % kSampled != 0 || state_ != State::idle) return;
  state_ = State::measuring;
  num_waits_ = 0;
  begin_.record(compute);
}

void StepPace::wait(const Event& event, const Stream& compute) {
  if (state_ != State::measuring) {
    event.wait(compute);
    return;
  }
  if (num_waits_ == waits_.size()) waits_.emplace_back(timed(), timed());
  auto& [before, after] = waits_[num_waits_++];
  before.record(compute);
  event.wait(compute);
  after.record(compute);
}

void StepPace::end(const Stream& compute) {
  if (!device_.is_cuda()) record_.end_step();
  if (state_ != State::measuring) return;
  end_.record(compute);
  state_ = State::ended;
}

void StepPace::settle() {
  if (state_ != State::ended || !end_.query()) return;
  state_ = State::idle;
  double waited_s = 0;
  for (std::size_t i = 0; i < num_waits_; ++i)
    waited_s += waits_[i].second.seconds_since(waits_[i].first);
  const auto nanoseconds = [](double seconds) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
        std::chrono::duration<double>(seconds));
  };
  record_.add_step(nanoseconds(end_.seconds_since(begin_)), nanoseconds(waited_s));
}

}  // namespace dstrain
