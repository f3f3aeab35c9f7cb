#pragma once

#include <string_view>
#include <utility>

namespace dstrain::launcher {

/// Owns a file descriptor; every descriptor of the launcher is close-on-exec from birth.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  ~UniqueFd() { reset(); }
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;

  [[nodiscard]] int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset();

 private:
  int fd_ = -1;
};

struct Pipe {
  UniqueFd read;
  UniqueFd write;
};

/// Error{internal} with errno's text for what the system refuses here (out of descriptors, mostly).
[[noreturn]] void fail_system(std::string_view action);
[[nodiscard]] Pipe make_pipe();
void set_nonblocking(int fd);
/// Opens /dev/null on each of 0, 1, 2 that is closed, so that no later descriptor is taken for a
/// standard stream.
void fill_standard_streams();

}  // namespace dstrain::launcher
