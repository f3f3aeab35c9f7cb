#include "engine/data/text/build_lock.h"

#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <thread>

#include "engine/base/output_file.h"

namespace dstrain::text {
namespace {

/// Bytes of the lock file: "SHARE\nHOLDER\nTEXT\n", filled up.
constexpr std::size_t kMessage = 256;
constexpr auto kPoll = std::chrono::milliseconds(50);

std::string holder_name() {
  std::array<char, 128> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) std::strcpy(host.data(), "this host");
  return fmt::format("process {} on {}", static_cast<long>(::getpid()), host.data());
}

struct Message {
  double share = 0;
  std::string holder, text;
};

Message read_message(int fd) {
  std::array<char, kMessage> bytes{};
  Message message{.share = 0, .holder = "another process", .text = ""};
  const auto got = ::pread(fd, bytes.data(), bytes.size(), 0);
  if (got != static_cast<ssize_t>(kMessage)) return message;
  const std::string_view all(bytes.data(), bytes.size());
  const auto first = all.find('\n');
  const auto second = all.find('\n', first + 1);
  const auto third = all.find('\n', second + 1);
  if (third == std::string_view::npos || third < second || second < first) return message;
  message.share = std::strtod(bytes.data(), nullptr);
  message.holder = all.substr(first + 1, second - first - 1);
  message.text = all.substr(second + 1, third - second - 1);
  return message;
}

}  // namespace

BuildLock::BuildLock(const std::filesystem::path& path, const std::string& what,
                     ProgressSink* progress) {
  fd_ = open_output_file(path, {.old = OldContent::edit,
                                .also_read = true,
                                .refused = ErrorKind::usage,
                                .hint = "name a folder that can be written in data.cache"});
  bool said = false;
  while (::flock(fd_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    held_ = errno == EWOULDBLOCK;
    if (!held_) break;
    const Message message = read_message(fd_.get());
    if (progress != nullptr && !said) {
      progress->note(fmt::format("waiting for {}, which is {}", message.holder, what));
    } else if (progress != nullptr && !message.text.empty()) {
      progress->progress(message.share, message.text);
    }
    said = true;
    std::this_thread::sleep_for(kPoll);
  }
  report(0, "");
}

void BuildLock::report(double share, const std::string& text) const {
  std::string message = fmt::format("{:.4f}\n{}\n{}", share, holder_name(), text);
  message.resize(std::min(message.size(), kMessage - 1));
  message += '\n';
  message.resize(kMessage, '\0');
  [[maybe_unused]] const auto written = ::pwrite(fd_.get(), message.data(), message.size(), 0);
}

}  // namespace dstrain::text
