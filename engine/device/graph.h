#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "engine/device/stream.h"

namespace dstrain {

/// Work of one stream, recorded once and launched again as a whole: the GPU then runs its kernels
/// without waiting for the host between them. Memory that the work allocates stays its own, at the
/// same addresses.
class Graph {
 public:
  Graph();
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  [[nodiscard]] bool captured() const { return captured_; }
  /// Records what `work` enqueues on `stream`, which must not be the default stream; nothing runs
  /// yet. `work` must not wait for the device. Memory comes from the pool of `sharing`, which never
  /// runs at the same time, where it is given.
  void capture(const Stream& stream, const std::function<void()>& work, const Graph* sharing);
  void replay(const Stream& stream);
  /// Kernels, copies and fills that the capture under way on `stream` holds.
  [[nodiscard]] static std::int64_t captured_work(const Stream& stream);

 private:
  struct State;
  std::unique_ptr<State> state_;
  bool captured_ = false;
};

/// Gives what LibTorch's allocator holds but does not use back to the driver.
void release_cached_memory(c10::Device device);

}  // namespace dstrain
