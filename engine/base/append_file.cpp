#include "engine/base/append_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>

#include "engine/base/error.h"
#include "engine/base/output_file.h"

namespace dstrain {

void AppendFile::open(const std::filesystem::path& path) {
  path_ = path;
  fd_ = open_output_file(path, {.old = OldContent::append});
}

void AppendFile::append(std::string_view record) {
  if (!fd_) throw Error(ErrorKind::internal, fmt::format("{} is not open", path_.string()));
  const off_t before = ::lseek(fd_.get(), 0, SEEK_END);
  std::string_view rest = record;
  while (!rest.empty()) {
    // A disk that is full takes a part, and says so at the next write.
    const auto written = ::write(fd_.get(), rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) break;
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
  if (rest.empty()) return;
  const int reason = errno;
  if (rest.size() < record.size() && before >= 0 && ::ftruncate(fd_.get(), before) != 0)
    fd_.reset();
  fail_output_file("write", path_, reason);
}

}  // namespace dstrain
