#include "launcher/base/standard_output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <utility>

#include "engine/base/output.h"

namespace dstrain::launcher {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kBuffer = std::size_t{1} << 20;
constexpr std::size_t kReserve = std::size_t{1} << 20;
constexpr int kLastWaitMs = 5000;

}  // namespace

StandardOutput::StandardOutput(int fd) : fd_(fd) {
  struct stat what {};
  is_file_ = ::fstat(fd, &what) == 0 && S_ISREG(what.st_mode);
  if (::isatty(fd) != 1) return;
  // O_NONBLOCK on `fd` itself would also hold for the shell that shares it.
  terminal_ = UniqueFd(::open(fmt::format("/proc/self/fd/{}", fd).c_str(),
                              O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (terminal_) fd_ = terminal_.get();
}

StandardOutput::~StandardOutput() {
  report_dropped();
  flush(kLastWaitMs);
}

ConsoleSink StandardOutput::sink() {
  ConsoleSink sink{.write = [this](std::string_view text) { write(text); },
                   .write_reserved = [this](std::string_view text) { write_reserved(text); }};
  sink.is_terminal = ::isatty(fd_) == 1;
  sink.columns = [this] {
    winsize size{};
    return ::ioctl(fd_, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? int{size.ws_col} : 80;
  };
  return sink;
}

void StandardOutput::write(std::string_view text) { add(text, kBuffer); }

void StandardOutput::write_reserved(std::string_view text) { add(text, kBuffer + kReserve); }

void StandardOutput::add(std::string_view text, std::size_t limit) {
  flush(0);
  const std::size_t waiting = pending_.size() + (writes_ ? writes_->waiting() : 0);
  if (waiting + text.size() > limit) {
    num_dropped_ += static_cast<int>(std::count(text.begin(), text.end(), '\n'));
    return;
  }
  report_dropped();
  pending_ += text;
  flush(0);
  if (error_ != 0) fail_output(std::exchange(error_, 0));
}

void StandardOutput::report_dropped() {
  if (num_dropped_ == 0) return;
  pending_ += fmt::format("dropped {} lines: the console was too slow; they are in the log\n",
                          num_dropped_);
  num_dropped_ = 0;
}

void StandardOutput::hand_over() {
  if (!writer_) writes_.emplace(writer_.emplace([] {}, BackgroundQueue::kUnlimited));
  if (pending_.empty()) return;
  std::string text = std::exchange(pending_, {});
  writes_->push(text.size(), [fd = fd_, text = std::move(text)] {
    std::string_view rest = text;
    while (!rest.empty()) {
      const auto written = ::write(fd, rest.data(), rest.size());
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) break;  // a reader that has gone is forgotten
      rest.remove_prefix(static_cast<std::size_t>(written));
    }
  });
}

void StandardOutput::flush(int wait_ms) {
  if (is_file_ && has_written_) {
    hand_over();
    if (wait_ms > 0) writer_->stop(std::chrono::milliseconds(wait_ms));
    return;
  }
  const auto deadline = Clock::now() + std::chrono::milliseconds(wait_ms);
  while (!pending_.empty()) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    pollfd ready{fd_, POLLOUT, 0};
    if (::poll(&ready, 1, static_cast<int>(std::max<std::int64_t>(left.count(), 0))) <= 0) return;
    // A pipe that polls as writable takes PIPE_BUF bytes without blocking, even where the
    // descriptor is a blocking one.
    const auto written =
        ::write(fd_, pending_.data(), std::min<std::size_t>(pending_.size(), PIPE_BUF));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN) return;
    if (written < 0) {
      if (!has_written_) error_ = errno;
      pending_.clear();
      return;
    }
    has_written_ = true;
    pending_.erase(0, static_cast<std::size_t>(written));
  }
}

}  // namespace dstrain::launcher
