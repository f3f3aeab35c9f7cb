#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <system_error>

#include "engine/base/error.h"

namespace dstrain {

/// For the start of a program. A write beyond the limit of a file's size becomes an error of that
/// write instead of a signal that ends the process. A stack of less than kMinStackBytes is made
/// larger, for this thread and those to come; Error{hosts} where the hard limit forbids it.
void prepare_limits();
inline constexpr std::uint64_t kMinStackBytes = std::uint64_t{1} << 20;

/// The limit of this process that `error` (an errno) says was met, as "; this process may open 16
/// files (ulimit -n, RLIMIT_NOFILE)"; empty without one. EMFILE (open_files.h), EFBIG; where they
/// are limited ENOMEM (address space) and EAGAIN (address space, processes).
[[nodiscard]] std::string limit_note(int error);

/// What the system says of `error`, with its limit_note().
[[nodiscard]] std::string system_reason(int error);

/// host_memory_error() for an error by which the system says that memory, or room for a thread's
/// stack, cannot be had; nothing for another one, or where no limit of address space is set.
[[nodiscard]] std::optional<Error> address_space_error(const std::error_code& code);

}  // namespace dstrain
