#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>

namespace dstrain {

/// Does work in order on a thread of its own, which takes no signals, so that a slow or blocked
/// file costs the caller nothing. When `capacity` pieces wait, the oldest is dropped and counted.
class BackgroundQueue {
 public:
  static constexpr std::size_t kCapacity = 4096;
  static constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();
  static constexpr std::chrono::seconds kPatience{5};

  /// `first` is done before all else and never dropped: what opens the files.
  explicit BackgroundQueue(std::function<void()> first, std::size_t capacity = kCapacity);
  /// stop() with kPatience, unless that was called.
  ~BackgroundQueue();
  BackgroundQueue(const BackgroundQueue&) = delete;
  BackgroundQueue& operator=(const BackgroundQueue&) = delete;

  /// `work` must not throw, and owns what it uses.
  void push(std::function<void()> work);
  /// Waits until all is done, up to `patience`; false when it is not.
  bool flush(std::chrono::milliseconds patience = kPatience);
  /// The same, and ends the thread; work that blocks longer is left behind with it. Once.
  void stop(std::chrono::milliseconds patience);
  [[nodiscard]] std::uint64_t dropped() const;
  /// Pieces that are not done, the present one among them.
  [[nodiscard]] std::uint64_t waiting() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace dstrain
