#pragma once

#include <string>
#include <string_view>

#include "launcher/base/fd.h"

namespace dstrain::launcher {

/// Standard error of a ChildProcess, bounded: a long text loses its middle.
class ChildStderr {
 public:
  void open(UniqueFd fd);
  /// Reads available bytes without waiting.
  void read();
  [[nodiscard]] int fd() const { return fd_.get(); }  ///< -1 when it is closed
  [[nodiscard]] const std::string& text() const { return text_; }
  [[nodiscard]] std::string last_line() const;

 private:
  UniqueFd fd_;
  std::string text_;
};

/// One line of what a program on another host printed, harmless on a terminal.
[[nodiscard]] std::string quote_output(std::string_view text);

}  // namespace dstrain::launcher
