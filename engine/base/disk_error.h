#pragma once

#include <cerrno>
#include <system_error>

#include "engine/base/error.h"

namespace dstrain {

/// What it is that a folder or file could not be made: a disk that is full or broken (74), else a
/// path that is to be chosen anew (64).
[[nodiscard]] inline ErrorKind refusal_kind(const std::error_code& error) {
  for (const std::errc disk :
       {std::errc::no_space_on_device, std::errc::io_error, std::errc::file_too_large}) {
    if (error == disk) return ErrorKind::checkpoint;
  }
  return error.value() == EDQUOT ? ErrorKind::checkpoint : ErrorKind::usage;
}

}  // namespace dstrain
