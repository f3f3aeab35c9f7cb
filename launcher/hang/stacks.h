#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/base/fd.h"

namespace dstrain::launcher {

/// The calls that one thread is in.
struct ThreadStack {
  pid_t thread = 0;
  std::string name = {};                 ///< of the thread, as the kernel knows it
  std::string kernel = {};               ///< what the kernel does for it, or empty
  std::vector<std::string> frames = {};  ///< innermost first
};

/// Writes what a process is in as text: the main thread's frames one per line, innermost first;
/// then, each group after a line "-- thread NAME" or "-- 3 threads NAME", those other threads that
/// run dstrain's own code, equal ones once. Lines that begin with "[kernel]" tell what the kernel
/// does for that thread.
[[nodiscard]] std::string to_text(pid_t process, const std::vector<ThreadStack>& threads);

/// What eu-stack -p and gdb's `thread apply all bt` print.
[[nodiscard]] std::vector<ThreadStack> parse_stacks(std::string_view text);

/// Takes the stacks of one process without waiting for it: a child of this process does the work
/// and writes into a pipe. It uses libdw, else eu-stack or gdb where one is installed; what cannot be traced, such as a thread in state D, is shown as /proc tells it. The
/// caller may reap the child like any other.
class StackTaker {
 public:
  using Clock = std::chrono::steady_clock;

  StackTaker(pid_t process, std::chrono::milliseconds limit);
  ~StackTaker();
  StackTaker(StackTaker&&) = default;
  StackTaker& operator=(StackTaker&&) = delete;
  StackTaker(const StackTaker&) = delete;
  StackTaker& operator=(const StackTaker&) = delete;

  /// Readable when there is news; -1 after the end.
  [[nodiscard]] int fd() const { return pipe_.get(); }
  [[nodiscard]] Clock::time_point deadline() const { return deadline_; }
  /// Reads available output; true when the text cannot become better.
  [[nodiscard]] bool advance(Clock::time_point now);
  /// The best that has come so far.
  [[nodiscard]] std::string text() const;
  /// State of the process when this began: R, S, D, ... of /proc/PID/stat; ? when it was gone.
  [[nodiscard]] char state() const { return state_; }

 private:
  pid_t process_ = -1;
  char state_ = '?';
  Clock::time_point deadline_{};
  UniqueFd child_;  ///< pidfd, so that no other process can be meant
  UniqueFd pipe_;
  /// Versions of the text, each better than the one before; each ends with NUL.
  std::string bytes_;
};

}  // namespace dstrain::launcher
