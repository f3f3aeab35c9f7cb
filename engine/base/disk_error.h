#pragma once

#include <cerrno>
#include <system_error>

#include "engine/base/error.h"

namespace dstrain {

/// Kind of the error when a folder or file could not be made: checkpoint for a full or broken disk
/// (74), else usage, as another path may work (64).
[[nodiscard]] inline ErrorKind refusal_kind(const std::error_code& error) {
  for (const std::errc disk :
       {std::errc::no_space_on_device, std::errc::io_error, std::errc::file_too_large}) {
    if (error == disk) return ErrorKind::checkpoint;
  }
  return error.value() == EDQUOT ? ErrorKind::checkpoint : ErrorKind::usage;
}

}  // namespace dstrain
