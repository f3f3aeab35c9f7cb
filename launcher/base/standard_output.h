#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "engine/base/background_queue.h"
#include "launcher/base/background_writes.h"
#include "launcher/base/console.h"
#include "launcher/base/fd.h"

namespace dstrain::launcher {

/// A sink over a descriptor, normally standard output. Never lets a stuck terminal, a slow pipe or
/// a file on a stuck disk stop the caller: what cannot be written waits in a buffer of 1 MiB, and
/// lines beyond that are dropped and counted. A reader that closed its end is forgotten, so that
/// closing a log viewer does not end a training run; but a job does not begin for an output that
/// never took anything: Error{checkpoint} (exit code 74) of the first write.
class StandardOutput {
 public:
  explicit StandardOutput(int fd);
  /// Waits up to 5 s for what is still buffered, and says what was dropped.
  ~StandardOutput();
  StandardOutput(const StandardOutput&) = delete;
  StandardOutput& operator=(const StandardOutput&) = delete;

  /// Refers to this object.
  [[nodiscard]] ConsoleSink sink();
  void write(std::string_view text);
  /// For the launcher's own messages: uses another 1 MiB that write() leaves free.
  void write_reserved(std::string_view text);

 private:
  void add(std::string_view text, std::size_t limit);
  void report_dropped();
  void flush(int wait_ms);
  /// Gives what is pending to the thread that writes to a file.
  void hand_over();

  int fd_;
  UniqueFd terminal_;  ///< the same terminal, opened anew so that writes do not block
  std::string pending_;
  int num_dropped_ = 0;
  bool has_written_ = false;
  bool is_file_ = false;
  /// Writes to a file once that has taken something: poll() says of a file that it never blocks.
  std::optional<BackgroundQueue> writer_;
  std::optional<BackgroundWrites> writes_;  ///< of writer_
  int error_ = 0;                           ///< errno of the first write
};

}  // namespace dstrain::launcher
