#include "engine/train/execute/lane_thread.h"

#include <utility>

namespace dstrain {

LaneThread::LaneThread(std::function<void()> cancel)
    : cancel_(std::move(cancel)), thread_([this] { work(); }) {}

LaneThread::~LaneThread() {
  bool busy = false;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    busy = done_ < added_;
  }
  changed_.notify_all();
  if (busy) cancel_();
  thread_.join();
}

std::int64_t LaneThread::add(std::function<void()> job) {
  const std::lock_guard lock(mutex_);
  jobs_.push_back(std::move(job));
  changed_.notify_all();
  return ++added_;
}

void LaneThread::wait(std::int64_t number) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ >= number || error_; });
  if (done_ < number) std::rethrow_exception(error_);
}

void LaneThread::wait_for_all() {
  std::int64_t last = 0;
  {
    const std::lock_guard lock(mutex_);
    last = added_;
  }
  wait(last);
}

void LaneThread::work() {
  for (;;) {
    std::function<void()> job;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return closed_ || !jobs_.empty(); });
      if (closed_) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    try {
      job();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      error_ = std::current_exception();
      changed_.notify_all();
      return;
    }
    job = nullptr;  // what it holds goes before its end is known
    const std::lock_guard lock(mutex_);
    ++done_;
    changed_.notify_all();
  }
}

}  // namespace dstrain
