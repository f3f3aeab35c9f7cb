#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace dstrain {

/// The calling thread computes with the default floating-point environment from now on: denormals
/// are neither flushed nor taken for zero, as on a GPU.
void use_default_arithmetic();

/// Threads that divide a loop among them, with use_default_arithmetic().
class HostPool {
 public:
  struct Options {
    int threads = 1;              ///< that compute at once, the caller included; >= 1
    std::vector<int> cores = {};  ///< that the threads may run on; empty: as the process
  };
  using Body = std::function<void(std::int64_t begin, std::int64_t end)>;

  explicit HostPool(Options options);
  ~HostPool();
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;

  [[nodiscard]] int num_threads() const { return static_cast<int>(helpers_.size()) + 1; }
  [[nodiscard]] const std::vector<int>& cores() const { return cores_; }

  /// Calls `body` for [0, count) in pieces of `grain` (the last may be shorter), on the calling
  /// thread and the pool's, and returns when all are done. Which thread takes a piece is open; the
  /// pieces are not. The first exception of a piece is thrown again here; pieces not yet begun are
  /// then left out. One call at a time; `body` must not call it again.
  void parallel_for(std::int64_t count, std::int64_t grain, const Body& body);

 private:
  struct Loop;
  void help(const std::stop_token& stop);
  void take_pieces(Loop& loop);

  std::vector<int> cores_;
  std::mutex mutex_;
  std::condition_variable_any begun_;
  std::condition_variable_any left_;
  Loop* loop_ = nullptr;        ///< under way
  std::int64_t num_loops_ = 0;  ///< begun so far
  std::vector<std::jthread> helpers_;
};

}  // namespace dstrain
