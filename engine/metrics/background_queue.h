#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

namespace dstrain {

/// Does work in order on a thread of its own, so that a slow or blocked file costs the caller
/// nothing. When `capacity` pieces wait, the oldest is dropped and counted.
class BackgroundQueue {
 public:
  static constexpr std::size_t kCapacity = 4096;
  static constexpr std::chrono::seconds kPatience{5};

  /// `first` is done before all else and never dropped: what opens the files.
  explicit BackgroundQueue(std::function<void()> first, std::size_t capacity = kCapacity);
  /// Waits up to kPatience for what is left; work that blocks longer is left behind with its
  /// thread.
  ~BackgroundQueue();
  BackgroundQueue(const BackgroundQueue&) = delete;
  BackgroundQueue& operator=(const BackgroundQueue&) = delete;

  /// `work` must not throw, and owns what it uses.
  void push(std::function<void()> work);
  /// Waits until all is done, up to kPatience; false when it is not.
  bool flush();
  [[nodiscard]] std::uint64_t dropped() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace dstrain
