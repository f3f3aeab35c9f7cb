#include "launcher/base/fd.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "engine/base/error.h"
#include "engine/base/limits.h"
#include "engine/base/open_files.h"

namespace dstrain::launcher {

void fail_system(std::string_view action) {
  const int error = errno;
  // Too little of something on this machine, mostly by a limit.
  const bool short_of = error == EMFILE || error == ENFILE || error == ENOMEM || error == EAGAIN;
  throw Error(short_of ? ErrorKind::hosts : ErrorKind::internal,
              fmt::format("cannot {}: {}", action, system_reason(error)));
}

Pipe make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) fail_system("make a pipe");
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

UniqueFd open_null() {
  UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null) fail_system("open /dev/null");
  return null;
}

void fill_standard_streams() {
  for (int fd = 0; fd <= 2; ++fd) {
    // open() takes the lowest free number, which is `fd` because the lower ones are open.
    if (::fcntl(fd, F_GETFD) < 0 && ::open("/dev/null", O_RDWR) != fd)
      fail_system("open /dev/null");
  }
}

void require_files_of_hosts(std::size_t hosts) {
  require_open_files(32 + 4 * static_cast<std::int64_t>(hosts),
                     fmt::format("a launch on {} host{}", hosts, hosts == 1 ? "" : "s"));
}

std::string read_available(UniqueFd& fd, std::size_t limit) {
  std::string bytes;
  std::array<char, 65536> block{};
  while (fd && bytes.size() < limit) {
    const ssize_t got = ::read(fd.get(), block.data(), block.size());
    if (got > 0) {
      bytes.append(block.data(), static_cast<std::size_t>(got));
    } else if (got < 0 && errno == EINTR) {
      continue;
    } else if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      break;
    } else {
      fd.reset();
    }
  }
  return bytes;
}

}  // namespace dstrain::launcher
