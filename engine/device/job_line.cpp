#include "engine/device/job_line.h"

#include <atomic>
#include <utility>

#include "engine/base/error.h"
#include "engine/device/numa.h"

namespace dstrain {

JobLine::JobLine(HostPool::Options options, std::uint32_t* flags)
    : pool_(std::in_place, std::move(options)), flags_(flags) {
  if (flags_ != nullptr) worker_ = std::thread([this] { work(); });
}

JobLine::~JobLine() { close(); }

std::optional<JobLine::Turn> JobLine::issue(const void* stream) {
  const std::lock_guard lock(mutex_);
  if (error_) return std::nullopt;
  std::size_t lane = 0;
  while (lane < lanes_.size() && lanes_[lane].stream != stream) ++lane;
  DSTRAIN_CHECK(lane < kMaxLanes, "host work for too many streams");
  if (lane == lanes_.size()) lanes_.push_back({.stream = stream});
  return Turn{.lane = lane, .number = ++lanes_[lane].num_issued};
}

void JobLine::hand_over(Turn turn, Job job) noexcept {
  if (flags_ == nullptr) {
    const std::lock_guard turn_of_caller(performing_);
    {
      const std::lock_guard lock(mutex_);
      if (closed_) return;
    }
    return perform(std::move(job));
  }
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  due_.push_back({.turn = turn, .job = std::move(job)});
  came_.notify_one();
}

void JobLine::perform(Job job) noexcept {
  if (failed()) return;
  try {
    job(*pool_);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    error_ = std::current_exception();
    release_all();
  }
}

void JobLine::work() {
  bind_this_thread(pool_->cores());
  use_default_arithmetic();
  std::unique_lock lock(mutex_);
  while (true) {
    came_.wait(lock, [this] { return closed_ || !due_.empty(); });
    if (due_.empty()) return;
    Due due = std::move(due_.front());
    due_.pop_front();
    lock.unlock();
    perform(std::move(due.job));  // the job is gone, with what it holds, before its flag is set
    lock.lock();
    // After a failure the flags stand further already.
    if (!error_) set_flag(due.turn);
  }
}

void JobLine::set_flag(Turn turn) {
  // Who sees the flag sees what the job wrote.
  std::atomic_ref(flags_[turn.lane * kFlagStride]).store(turn.number, std::memory_order_release);
}

void JobLine::release_all() {
  for (std::size_t lane = 0; flags_ != nullptr && lane < lanes_.size(); ++lane)
    set_flag({.lane = lane, .number = lanes_[lane].num_issued});
}

bool JobLine::failed() const {
  const std::lock_guard lock(mutex_);
  return error_ != nullptr;
}

void JobLine::rethrow() const {
  std::exception_ptr error;
  {
    const std::lock_guard lock(mutex_);
    error = error_;
  }
  if (error) std::rethrow_exception(error);
}

void JobLine::close() noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(closed_, true)) return;
  }
  came_.notify_all();
  if (worker_.joinable()) worker_.join();
  const std::lock_guard turn_of_caller(performing_);
  const std::lock_guard lock(mutex_);
  release_all();
  pool_.reset();
}

}  // namespace dstrain
