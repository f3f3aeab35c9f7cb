#include "engine/base/log.h"

#include <unistd.h>

#include <string>

namespace dstrain {

void log_line(LogLevel level, std::string_view text) {
  const char* label = level == LogLevel::warning ? "warning: "
                      : level == LogLevel::error ? "error: "
                                                 : "";
  const std::string line = fmt::format("{}{}\n", label, text);
  // One write keeps lines of several threads and processes whole.
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace dstrain
