#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace dstrain {

/// The only way of this program's text to standard output and standard error: all of it passes
/// printable(), so that no name, value or peer can drive the terminal. `test/repository` holds that
/// nothing else writes there; what a job shows while it runs goes through launcher/base/console.h.

/// To standard output, at once. Error{checkpoint} (exit code 74) when it cannot be written: a full
/// disk, a closed descriptor. A reader that closed its end ends the program by SIGPIPE, unless that
/// is ignored.
void print_text(std::string_view text);

/// To standard error, in one write, so that lines of several processes stay whole. A failure is
/// not reported: there is no place for it.
void print_error(std::string_view text);

template <class First, class... Rest>
void print_text(fmt::format_string<First, Rest...> format, First&& first, Rest&&... rest) {
  print_text(fmt::format(format, std::forward<First>(first), std::forward<Rest>(rest)...));
}
template <class First, class... Rest>
void print_error(fmt::format_string<First, Rest...> format, First&& first, Rest&&... rest) {
  print_error(fmt::format(format, std::forward<First>(first), std::forward<Rest>(rest)...));
}

/// The line that is drawn again and again on a terminal at standard error; empty: takes it away.
void draw_error_line(std::string_view text);

/// Throws the error of a standard output that cannot be written; `error` is an errno.
[[noreturn]] void fail_output(int error);
/// Error{checkpoint} when standard output is closed.
void require_standard_output();

}  // namespace dstrain
