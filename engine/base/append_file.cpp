#include "engine/base/append_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "engine/base/error.h"

namespace dstrain {

void AppendFile::open(const std::filesystem::path& path) {
  path_ = path;
  fd_ = UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!fd_) fail("open");
}

void AppendFile::append(std::string_view record) {
  if (!fd_) throw Error(ErrorKind::internal, fmt::format("{} is not open", path_.string()));
  const off_t before = ::lseek(fd_.get(), 0, SEEK_END);
  const auto written = ::write(fd_.get(), record.data(), record.size());
  if (written == static_cast<ssize_t>(record.size())) return;
  if (written >= 0) errno = ENOSPC;
  const int reason = errno;
  if (written > 0 && before >= 0 && ::ftruncate(fd_.get(), before) != 0) fd_.reset();
  errno = reason;
  fail("write");
}

void AppendFile::fail(const char* action) const {
  throw Error(ErrorKind::checkpoint,
              fmt::format("cannot {} {}: {}", action, path_.string(), std::strerror(errno)));
}

}  // namespace dstrain
