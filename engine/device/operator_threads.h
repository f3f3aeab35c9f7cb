#pragma once

namespace dstrain {

/// Threads among which this process divides an operator on the CPU; other threads of the process
/// that begin operators later divide theirs alike. The number before comes back at the end.
class OperatorThreads {
 public:
  /// At most `max` (>= 1) of those that the process is given (OMP_NUM_THREADS, else its cores).
  explicit OperatorThreads(int max);
  ~OperatorThreads();
  OperatorThreads(const OperatorThreads&) = delete;
  OperatorThreads& operator=(const OperatorThreads&) = delete;

  [[nodiscard]] int given() const { return given_; }
  [[nodiscard]] int used() const { return used_; }

 private:
  int given_, used_;
};

}  // namespace dstrain
