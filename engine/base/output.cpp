#include "engine/base/output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "engine/base/error.h"
#include "engine/base/marked_text.h"
#include "engine/base/printable.h"

namespace dstrain {

void fail_output(int error) {
  throw Error(ErrorKind::checkpoint,
              fmt::format("cannot write to standard output: {}", std::strerror(error)),
              "send it to a file that can grow, or to a program that reads it to its end");
}

namespace {

void write_output(std::string_view rest) {
  while (!rest.empty()) {
    const auto written = ::write(STDOUT_FILENO, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN) {  // shared with a program that made it non-blocking
      pollfd ready{STDOUT_FILENO, POLLOUT, 0};
      ::poll(&ready, 1, -1);
      continue;
    }
    if (written < 0) fail_output(errno);
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace

void print_text(std::string_view text) { write_output(printable(text)); }

void print_marked_text(std::string_view text) {
  const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  write_output(terminal ? fmt::format("\x1b[32m{}\x1b[0m", printable(text))
                        : fmt::format("[[{}]]", printable(text)));
}

void print_error(std::string_view text) {
  const std::string clean = printable(text);
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, clean.data(), clean.size());
}

void draw_error_line(std::string_view text) {
  const std::string line = fmt::format("\r{}\x1b[K", shown(text, std::string_view::npos));
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

void require_standard_output() {
  if (::fcntl(STDOUT_FILENO, F_GETFD) < 0) fail_output(errno);
}

}  // namespace dstrain
