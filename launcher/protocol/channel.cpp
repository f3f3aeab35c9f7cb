#include "launcher/protocol/channel.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>

namespace dstrain::launcher {
namespace {

ssize_t write_quietly(int fd, const std::string& bytes) {
  const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (sent >= 0 || errno != ENOTSOCK) return sent;
  return ::write(fd, bytes.data(), bytes.size());
}

}  // namespace

Channel::Channel(UniqueFd in, UniqueFd out) : in_(std::move(in)), out_(std::move(out)) {
  set_nonblocking(in_.get());
  set_nonblocking(out_.get());
}

bool Channel::receive() {
  std::array<char, 65536> block{};
  while (true) {
    const ssize_t got = ::read(in_.get(), block.data(), block.size());
    if (got > 0) {
      decoder_.append({block.data(), static_cast<std::size_t>(got)});
      // A full block may be one of many: let the caller use these frames before more are buffered.
      return true;
    }
    if (got == 0) return false;
    if (errno == EINTR) continue;
    return errno == EAGAIN || errno == EWOULDBLOCK;
  }
}

void Channel::send_frame(std::string_view frame) {
  if (broken_) return;
  pending_ += frame;
  flush();
}

void Channel::flush() {
  while (!pending_.empty()) {
    const ssize_t sent = write_quietly(out_.get(), pending_);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (sent < 0) {
      // The reader is gone; the end of file on `in` says so to the caller.
      broken_ = true;
      pending_.clear();
      return;
    }
    pending_.erase(0, static_cast<std::size_t>(sent));
  }
}

}  // namespace dstrain::launcher
