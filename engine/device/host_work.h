#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <vector>

#include "engine/device/host_pool.h"
#include "engine/device/stream.h"

namespace dstrain {

/// Host functions ("jobs") in the order of streams: a job begins when everything before it on its
/// stream is done, and what is enqueued there later, events included, comes after the job. The
/// thread that enqueues never waits. On the CPU a job runs inside enqueue().
///
/// The stream hands a job over by a CUDA host function that returns at once, then waits for a flag
/// in host memory. The wait stands right behind the hand-over, so no other stream can be needed to
/// end it: hardware queues may be shared (CUDA_DEVICE_MAX_CONNECTIONS=1).
class HostWork {
 public:
  using Job = std::function<void(HostPool&)>;
  struct Options {
    int threads = 1;              ///< of the pool, the one that runs the jobs included
    std::vector<int> cores = {};  ///< that they may run on (numa.h); empty: as the process
    /// False: jobs run inside CUDA's host function, as they do where the driver's streams cannot
    /// wait for values. Jobs of all HostWork objects then take turns.
    bool wait_on_device = true;
  };

  HostWork(c10::Device device, Options options);
  /// Waits for the job that runs and those whose turn on their stream has come. Jobs whose turn has
  /// not come are left out, as after a failure: synchronise the streams first.
  ~HostWork();
  HostWork(const HostWork&) = delete;
  HostWork& operator=(const HostWork&) = delete;

  /// Jobs of one object run one after the other, of several objects at once. A job must not call
  /// CUDA nor LibTorch on a GPU, and must not wait for work enqueued later. When a job throws, the
  /// exception is kept, no later job runs, and nothing waits any more: later work of the streams
  /// then runs on data that is not there. Call from one thread, or with a lock.
  void enqueue(const Stream& stream, Job job);

  [[nodiscard]] bool failed() const;
  /// Throws what a job threw, every time; nothing when none did.
  void rethrow() const;

  /// For work between jobs, on the CPU or while no job can run.
  [[nodiscard]] HostPool& pool();
  /// Streams wait for flags; false on the CPU and where jobs run inside the host function.
  [[nodiscard]] bool waits_on_device() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace dstrain
