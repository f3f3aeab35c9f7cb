#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace dstrain {

/// A lane of a rank on the CPU whose actions wait for other ranks while the rank computes: its jobs
/// run one after the other on a thread of their own.
class LaneThread {
 public:
  /// `cancel` ends a job that waits for another rank; called from another thread.
  explicit LaneThread(std::function<void()> cancel);
  /// Cancels what is under way.
  ~LaneThread();
  LaneThread(const LaneThread&) = delete;
  LaneThread& operator=(const LaneThread&) = delete;

  /// Returns the job's number, from 1. After a job that threw, no other one runs.
  std::int64_t add(std::function<void()> job);
  /// Job `number` has run; 0: any. Throws what it, or a job before it, threw.
  void wait(std::int64_t number);
  /// The same of all jobs so far.
  void wait_for_all();

 private:
  void work();

  std::function<void()> cancel_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  std::int64_t added_ = 0, done_ = 0;
  bool closed_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace dstrain
