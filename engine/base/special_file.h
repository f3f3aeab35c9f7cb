#pragma once

#include <sys/stat.h>

#include <filesystem>

#include "engine/base/error.h"

namespace dstrain {

/// Whether a device, a pipe or a socket is there, or a link to one: it is written in place, since a
/// rename would take it away from everybody ("-o /dev/null" by root).
[[nodiscard]] inline bool is_special_file(const std::filesystem::path& path) {
  struct stat status{};
  return ::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode);
}

/// Error{kind} for a name with a zero byte: the system would take the part before it for the name.
void require_no_zero_byte(const std::filesystem::path& path, ErrorKind kind);

}  // namespace dstrain
