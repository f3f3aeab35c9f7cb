#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "engine/device/host_pool.h"

namespace dstrain {

/// HostWork without CUDA: jobs of several streams, performed one after the other when their turn
/// has come, and a flag per stream that holds the number of its last job done. A stream that waits
/// compares the flag with its job's number as (flag - number) >= 0 in int32, so that numbers may
/// come round.
class JobLine {
 public:
  using Job = std::function<void(HostPool&)>;
  /// Streams of one line at most: more than LibTorch has for a device.
  static constexpr std::size_t kMaxLanes = 128;
  /// Flags are a cache line apart: several are polled and written at the same time.
  static constexpr std::size_t kFlagStride = 64 / sizeof(std::uint32_t);

  struct Turn {
    std::size_t lane = 0;      ///< of the stream; its flag is flags[lane * kFlagStride]
    std::uint32_t number = 0;  ///< of the job in its lane, from 1
  };

  /// `flags`: kMaxLanes * kFlagStride zeros that outlive close(), and a thread of the line performs
  /// the jobs. Null: who hands a job over performs it.
  JobLine(HostPool::Options options, std::uint32_t* flags);
  ~JobLine();
  JobLine(const JobLine&) = delete;
  JobLine& operator=(const JobLine&) = delete;

  /// The next turn of a stream; none after a failure.
  [[nodiscard]] std::optional<Turn> issue(const void* stream);
  /// The job's turn has come: in the order of issue() for each stream. Returns at once where the
  /// line has a thread. Drops the job when the line is closed.
  void hand_over(Turn turn, Job job) noexcept;
  /// Performs the job here, unless one has failed. What it throws is kept, and all flags are set.
  void perform(Job job) noexcept;

  [[nodiscard]] bool failed() const;
  void rethrow() const;
  [[nodiscard]] HostPool& pool() { return *pool_; }

  /// Waits for jobs that were handed over; drops those that come later, and sets all flags.
  void close() noexcept;

 private:
  struct Lane {
    const void* stream = nullptr;
    std::uint32_t num_issued = 0;
  };
  struct Due {
    Turn turn;
    Job job;
  };
  void work();
  void set_flag(Turn turn);
  void release_all();

  std::optional<HostPool> pool_;
  std::uint32_t* flags_;
  std::mutex performing_;  ///< held by who performs without a thread of the line

  mutable std::mutex mutex_;  ///< over what follows, and held while flags are set
  std::condition_variable came_;
  std::vector<Lane> lanes_;
  std::deque<Due> due_;
  bool closed_ = false;
  std::exception_ptr error_;

  std::thread worker_;
};

}  // namespace dstrain
