#pragma once

#include <string>
#include <vector>

namespace dstrain {

/// "NAME=VALUE" of each line of a file such as .deepspeed_env; blank lines and lines that begin
/// with # are left out, a CR at a line's end, too. Error{usage} names file and line of any other.
[[nodiscard]] std::vector<std::string> read_env_file(const std::string& path);

}  // namespace dstrain
