#pragma once

#include <cstdint>
#include <string>

namespace dstrain {

/// Lets this process open `needed` files at once, as far as its hard limit allows. Error{hosts}
/// that names the limit and `what` needs them when it does not.
void require_open_files(std::int64_t needed, const std::string& what);

/// "; this process may open 16 files (ulimit -n, RLIMIT_NOFILE)" when `error` (an errno) says that
/// this limit was met, else empty.
[[nodiscard]] std::string open_files_note(int error);

}  // namespace dstrain
