#include "engine/base/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>

#include <cerrno>
#include <system_error>

#include "engine/base/disk_error.h"
#include "engine/base/input_file.h"
#include "engine/base/limits.h"
#include "engine/base/special_file.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

constexpr int kReaderPatienceMs = 10'000;

[[noreturn]] void refuse_output(const fs::path& path, const OutputOptions& options,
                                const char* what) {
  throw Error(options.refused, fmt::format("cannot write {}: {}", shown_path(path), what),
              options.hint.empty() ? "take it away, or name another file" : options.hint);
}

/// Regular files and character devices, such as /dev/null, take bytes at once.
void require_output_mode(const fs::path& path, const OutputOptions& options, mode_t mode) {
  if (S_ISREG(mode) || S_ISCHR(mode)) return;
  refuse_output(path, options,
                S_ISFIFO(mode)  ? "it is a FIFO (pipe), not a file"
                : S_ISDIR(mode) ? "it is a directory, not a file"
                                : "it is no file");
}

/// `name` stands for `path` in the message.
[[noreturn]] void refuse_open(const fs::path& path, const fs::path& name,
                              const OutputOptions& options, int error) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) == 0) {
    if (S_ISLNK(status.st_mode) && error == ELOOP) {
      refuse_output(name, options,
                    "it is a symbolic link, and files are not written through links");
    }
    if (error == ENXIO) {
      refuse_output(name, options,
                    S_ISSOCK(status.st_mode) ? "it is a socket, not a file"
                                             : "it is a FIFO (pipe) that nobody reads");
    }
  }
  fail_output_file("write", name, error, options);
}

}  // namespace

void fail_output_file(const char* action, const fs::path& path, int error,
                      const OutputOptions& options) {
  const bool disk =
      refusal_kind(std::error_code(error, std::generic_category())) == ErrorKind::checkpoint;
  throw Error(disk ? ErrorKind::checkpoint : options.refused,
              fmt::format("cannot {} {}: {}", action, shown_path(path), system_reason(error)),
              options.hint);
}

UniqueFd open_output_file(const fs::path& path, const OutputOptions& options) {
  const fs::path& name = options.name.empty() ? path : options.name;
  require_no_zero_byte(name, options.refused);
  int flags = O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  flags |= options.also_read ? O_RDWR : O_WRONLY;
  switch (options.old) {
    case OldContent::append:
      flags |= O_APPEND;
      break;
    case OldContent::edit:
      break;
    case OldContent::cut:
      flags |= O_TRUNC;
      break;
    case OldContent::replace:
      flags |= O_EXCL;
      // A folder stays, and is what opening then meets.
      if (::unlink(path.c_str()) != 0 && errno != ENOENT && errno != EISDIR)
        refuse_open(path, name, options, errno);
      break;
    case OldContent::refuse:
      flags |= O_EXCL;
      break;
  }
  const bool owner_only = options.readers == Readers::owner;
  UniqueFd fd(::open(path.c_str(), flags, owner_only ? 0600 : 0644));
  struct stat status {};
  if (!fd || ::fstat(fd.get(), &status) != 0) refuse_open(path, name, options, errno);
  require_output_mode(name, options, status.st_mode);
  if (owner_only && S_ISREG(status.st_mode)) (void)::fchmod(fd.get(), 0600);
  return fd;
}

UniqueFd open_special_file(const fs::path& path) {
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (fd) return fd;
  const int error = errno;
  struct stat status {};
  const bool fifo = ::stat(path.c_str(), &status) == 0 && S_ISFIFO(status.st_mode);
  if (error == ENXIO && fifo) {
    refuse_output(path, {.hint = "start its reader first"},
                  "it is a FIFO (pipe) that nobody reads");
  }
  refuse_open(path, path, {}, error);
}

void write_fully(int fd, std::string_view bytes, const fs::path& path,
                 const OutputOptions& options) {
  while (!bytes.empty()) {
    const auto written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN) {
      pollfd ready{.fd = fd, .events = POLLOUT, .revents = 0};
      if (::poll(&ready, 1, kReaderPatienceMs) != 0) continue;
      refuse_output(path, {.hint = "see what reads it"},
                    "its reader has taken nothing for ten seconds");
    }
    if (written < 0) fail_output_file("write", path, errno, options);
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace dstrain
