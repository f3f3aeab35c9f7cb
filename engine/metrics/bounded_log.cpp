#include "engine/metrics/bounded_log.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/output_file.h"

namespace dstrain {
namespace {

constexpr int kLookMs = 50;
constexpr std::size_t kMaxLineBytes = std::size_t{64} << 10;

}  // namespace

BoundedLog::BoundedLog(const std::filesystem::path& path, Redactor redactor)
    : redactor_(std::move(redactor)), path_(path) {
  try {
    file_ = open_output_file(path_, {.old = OldContent::append, .readers = Readers::owner});
  } catch (const Error&) {
    // What the program says is lost; that it failed is told all the same.
  }
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return;
  read_end_ = UniqueFd(ends[0]);
  write_end_ = UniqueFd(ends[1]);
  thread_ = std::jthread([this](const std::stop_token& stop) { read(stop); });
}

BoundedLog::~BoundedLog() {
  close_end();
  thread_.request_stop();
}

void BoundedLog::finish() {
  constexpr std::chrono::seconds kLimit{1};
  close_end();
  const auto end = std::chrono::steady_clock::now() + kLimit;
  while (std::chrono::steady_clock::now() < end) {
    pollfd closed{.fd = read_end_.get(), .events = 0, .revents = 0};
    if (::poll(&closed, 1, 0) > 0) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(kLookMs / 5));
  }
  thread_.request_stop();
  if (thread_.joinable()) thread_.join();
}

void BoundedLog::read(const std::stop_token& stop) {
  std::string partial;
  std::array<char, 16384> block{};
  // A child that has left the program's session may write without end.
  for (int reads_left = 64; reads_left > 0;) {
    if (stop.stop_requested()) --reads_left;
    pollfd ready{.fd = read_end_.get(), .events = POLLIN, .revents = 0};
    const int found = ::poll(&ready, 1, kLookMs);
    if (found == 0 && stop.stop_requested()) break;
    if (found <= 0) continue;
    const ssize_t got = ::read(read_end_.get(), block.data(), block.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    partial.append(block.data(), static_cast<std::size_t>(got));
    const auto newline = partial.rfind('\n');
    const std::size_t whole = newline != std::string::npos     ? newline + 1
                              : partial.size() > kMaxLineBytes ? partial.size()
                                                               : 0;
    if (whole == 0) continue;
    commit(partial.substr(0, whole));
    partial.erase(0, whole);
  }
  if (!partial.empty()) commit(partial + "\n");
}

void BoundedLog::commit(std::string lines) {
  if (!file_) return;
  redactor_.apply(lines);
  const bool last = bytes_ + lines.size() > kMaxBytes;
  if (last) lines = lines.substr(0, kMaxBytes - bytes_) + "\n[the rest is left out]\n";
  bytes_ += lines.size();
  try {
    write_fully(file_.get(), lines, path_);
  } catch (const Error&) {
    file_.reset();
  }
  if (last) file_.reset();
}

}  // namespace dstrain
