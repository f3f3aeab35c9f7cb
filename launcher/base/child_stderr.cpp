#include "launcher/base/child_stderr.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace dstrain::launcher {
namespace {

constexpr std::size_t kKeptWords = 16 << 10;

}  // namespace

void ChildStderr::open(UniqueFd fd) {
  set_nonblocking(fd.get());
  fd_ = std::move(fd);
  text_.clear();
}

void ChildStderr::read() {
  std::array<char, 4096> block{};
  while (fd_) {
    const ssize_t got = ::read(fd_.get(), block.data(), block.size());
    if (got > 0) {
      text_.append(block.data(), static_cast<std::size_t>(got));
      if (text_.size() > kKeptWords) text_.erase(kKeptWords / 4, text_.size() - kKeptWords);
    } else if (got == 0 || (errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK)) {
      fd_.reset();
    } else if (errno != EINTR) {
      return;
    }
  }
}

std::string ChildStderr::last_line() const {
  std::string_view rest = text_;
  while (!rest.empty() && (rest.back() == '\n' || rest.back() == '\r')) rest.remove_suffix(1);
  const auto start = rest.rfind('\n');
  return std::string(start == std::string_view::npos ? rest : rest.substr(start + 1));
}

std::string quote_output(std::string_view text) {
  const std::string_view line = text.substr(0, std::min(text.find('\n'), std::size_t{300}));
  std::string clean;
  for (const char c : line) {
    const auto code = static_cast<unsigned char>(c);
    if (code >= 0x20 && code != 0x7f) clean += c;
  }
  return clean;
}

}  // namespace dstrain::launcher
