#pragma once

#include <sys/stat.h>

#include <filesystem>

namespace dstrain {

/// Whether a device, a pipe or a socket is there, or a link to one: it is written in place, since a
/// rename would take it away from everybody ("-o /dev/null" by root).
[[nodiscard]] inline bool is_special_file(const std::filesystem::path& path) {
  struct stat status{};
  return ::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode);
}

}  // namespace dstrain
