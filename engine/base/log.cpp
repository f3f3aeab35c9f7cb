#include "engine/base/log.h"

#include <string>

#include "engine/base/output.h"

namespace dstrain {

void log_line(LogLevel level, std::string_view text) {
  const char* label = level == LogLevel::warning ? "warning: " : "error: ";
  print_error(fmt::format("{}{}\n", label, text));
}

}  // namespace dstrain
