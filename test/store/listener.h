#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <stdexcept>
#include <utility>

namespace dstrain::test {

/// A listening socket on a free port of loopback, as an agent makes it for rank 0.
class Listener {
 public:
  Listener() : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    if (::bind(fd_, generic, length) != 0 || ::listen(fd_, 64) != 0 ||
        ::getsockname(fd_, generic, &length) != 0) {
      throw std::runtime_error("no listening socket on loopback");
    }
    port_ = ntohs(address.sin_port);
  }
  ~Listener() {
    if (fd_ >= 0) ::close(fd_);
  }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  [[nodiscard]] int port() const { return port_; }
  [[nodiscard]] int fd() const { return fd_; }
  /// The descriptor; its taker closes it.
  [[nodiscard]] int hand_over() { return std::exchange(fd_, -1); }

 private:
  int fd_;
  int port_ = 0;
};

}  // namespace dstrain::test
