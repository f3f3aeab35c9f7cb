#include "engine/base/background_queue.h"

#include <condition_variable>
#include <csignal>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

namespace dstrain {

struct BackgroundQueue::State {
  explicit State(std::size_t limit) : capacity(limit) {}

  void loop(std::function<void()> first) {
    first();
    first = nullptr;  // a waiting thread may be the last owner of what it used
    std::unique_lock lock(mutex);
    busy = false;
    changed.notify_all();
    while (true) {
      changed.wait(lock, [&] { return stopping || !waiting.empty(); });
      if (waiting.empty()) return;
      std::function<void()> work = std::move(waiting.front());
      waiting.pop_front();
      busy = true;
      lock.unlock();
      work();
      work = nullptr;
      lock.lock();
      busy = false;
      changed.notify_all();
    }
  }
  bool flush(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, patience, [&] { return waiting.empty() && !busy; });
  }

  std::size_t capacity;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> waiting;
  bool busy = true;  ///< with the first work
  bool stopping = false;
  std::uint64_t dropped = 0;
};

BackgroundQueue::BackgroundQueue(std::function<void()> first, std::size_t capacity)
    : state_(std::make_shared<State>(capacity)) {
  // Signals are for the thread that started this one.
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([state = state_, first = std::move(first)]() mutable {
    state->loop(std::move(first));
  }).detach();
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

BackgroundQueue::~BackgroundQueue() { stop(kPatience); }

void BackgroundQueue::stop(std::chrono::milliseconds patience) {
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->stopping) return;
  }
  state_->flush(patience);
  const std::lock_guard lock(state_->mutex);
  state_->stopping = true;
  state_->waiting.clear();
  state_->changed.notify_all();
}

void BackgroundQueue::push(std::function<void()> work) {
  const std::lock_guard lock(state_->mutex);
  if (state_->waiting.size() == state_->capacity) {
    state_->waiting.pop_front();
    ++state_->dropped;
  }
  state_->waiting.push_back(std::move(work));
  state_->changed.notify_all();
}

bool BackgroundQueue::flush(std::chrono::milliseconds patience) { return state_->flush(patience); }

std::uint64_t BackgroundQueue::waiting() const {
  const std::lock_guard lock(state_->mutex);
  return state_->waiting.size() + (state_->busy ? 1 : 0);
}

std::uint64_t BackgroundQueue::dropped() const {
  const std::lock_guard lock(state_->mutex);
  return state_->dropped;
}

}  // namespace dstrain
