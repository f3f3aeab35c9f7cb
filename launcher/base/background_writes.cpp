#include "launcher/base/background_writes.h"

#include <mutex>
#include <utility>

#include "engine/base/error.h"

namespace dstrain::launcher {

/// What the thread of the queue has, too.
struct BackgroundWrites::State {
  std::mutex mutex = {};
  std::size_t waiting = 0;
  std::string error = {};
};

BackgroundWrites::BackgroundWrites(BackgroundQueue& queue)
    : queue_(&queue), state_(std::make_shared<State>()) {}

void BackgroundWrites::push(std::size_t bytes, std::function<void()> write) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->waiting += bytes;
  }
  queue_->push([state = state_, bytes, write = std::move(write)] {
    std::unique_lock lock(state->mutex);
    std::string error = state->error;
    if (error.empty()) {
      lock.unlock();
      try {
        write();
      } catch (const Error& problem) {
        error = problem.what();
      }
      lock.lock();
    }
    state->error = std::move(error);
    state->waiting -= bytes;
  });
}

std::string BackgroundWrites::error() const {
  const std::lock_guard lock(state_->mutex);
  return state_->error;
}

std::size_t BackgroundWrites::waiting() const {
  const std::lock_guard lock(state_->mutex);
  return state_->waiting;
}

}  // namespace dstrain::launcher
