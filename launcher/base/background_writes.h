#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "engine/base/background_queue.h"

namespace dstrain::launcher {

/// Writes to one file on the thread of a queue, in order: the first error, and what waits.
class BackgroundWrites {
 public:
  /// `queue` outlives it and drops nothing (BackgroundQueue::kUnlimited).
  explicit BackgroundWrites(BackgroundQueue& queue);

  /// Does `write`, of so many bytes. Once one has thrown Error, the others are left out.
  void push(std::size_t bytes, std::function<void()> write);

  /// What the one that failed has said, or empty.
  [[nodiscard]] std::string error() const;
  /// Bytes that are neither written nor left out yet.
  [[nodiscard]] std::size_t waiting() const;

 private:
  struct State;
  BackgroundQueue* queue_;
  std::shared_ptr<State> state_;
};

}  // namespace dstrain::launcher
