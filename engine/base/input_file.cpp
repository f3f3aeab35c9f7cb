#include "engine/base/input_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "engine/base/special_file.h"

namespace dstrain {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& path, ErrorKind kind, const std::string& why,
                         const std::string& hint = {}) {
  throw Error(kind, fmt::format("cannot read {}: {}", shown_path(path), why), hint);
}

[[noreturn]] void refuse_errno(const std::filesystem::path& path, ErrorKind kind, int error) {
  if (error == ELOOP) {
    refuse(path, kind, "its symbolic links lead in a circle",
           "see where they lead with `ls -l` or `namei`");
  }
  if (error == ENAMETOOLONG) {
    refuse(path, kind,
           fmt::format("a name of {} bytes is longer than the system takes", path.native().size()));
  }
  refuse(path, kind, std::strerror(error));
}

[[noreturn]] void refuse_mode(const std::filesystem::path& path, ErrorKind kind, mode_t mode) {
  if (S_ISFIFO(mode)) {
    refuse(path, kind, "it is a FIFO (pipe), not a file",
           "a pipe or <(command) can be read only once; write it to a file and name that");
  }
  if (S_ISDIR(mode)) refuse(path, kind, "it is a directory, not a file");
  const char* what = S_ISSOCK(mode)                   ? "a socket"
                     : S_ISCHR(mode) || S_ISBLK(mode) ? "a device"
                                                      : "of another kind";
  refuse(path, kind, fmt::format("it is {}, not a file", what));
}

}  // namespace

std::string shown_path(const std::filesystem::path& path) {
  constexpr std::size_t kMaxBytes = 1024, kHead = 120, kTail = 40;
  const std::string& text = path.native();
  if (text.size() <= kMaxBytes) return text;
  return fmt::format("{}...{}", text.substr(0, kHead), text.substr(text.size() - kTail));
}

void require_no_zero_byte(const std::filesystem::path& path, ErrorKind kind) {
  std::string name = path.native();
  if (name.find('\0') == std::string::npos) return;
  for (auto at = name.find('\0'); at != std::string::npos; at = name.find('\0'))
    name.replace(at, 1, "\\x00");
  throw Error(kind, fmt::format("{}: the name has a zero byte", shown_path(name)));
}

PathKind path_kind(const std::filesystem::path& path, ErrorKind kind) {
  require_no_zero_byte(path, kind);
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return PathKind::nothing;
    refuse_errno(path, kind, errno);
  }
  if (S_ISREG(status.st_mode)) return PathKind::file;
  return S_ISDIR(status.st_mode) ? PathKind::folder : PathKind::other;
}

UniqueFd open_input_file(const std::filesystem::path& path, ErrorKind kind) {
  require_no_zero_byte(path, kind);
  // Looked at before it is opened, as opening alone acts on devices and on a FIFO's writer; and
  // after, as another may stand there by then.
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) refuse_errno(path, kind, errno);
  if (!S_ISREG(status.st_mode)) refuse_mode(path, kind, status.st_mode);
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!fd || ::fstat(fd.get(), &status) != 0) refuse_errno(path, kind, errno);
  if (!S_ISREG(status.st_mode)) refuse_mode(path, kind, status.st_mode);
  return fd;
}

}  // namespace dstrain
