#pragma once

#include <fmt/format.h>

#include <string_view>

namespace dstrain {

enum class LogLevel { warning, error };

/// One whole line to stderr with the rank's prefix when RANK is set; safe from any thread.
void log_line(LogLevel level, std::string_view text);

template <class... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::warning, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace dstrain
