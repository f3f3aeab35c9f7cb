#pragma once

#include <string>
#include <vector>

namespace dstrain::launcher {

/// "SIGKILL"; "signal 64" for one without a name.
[[nodiscard]] std::string signal_name(int signal);
/// {0, 2, 3, 4} -> "0, 2-4".
[[nodiscard]] std::string fold_ranks(std::vector<int> ranks);
/// `text` as one word of a POSIX shell.
[[nodiscard]] std::string shell_quote(const std::string& text);

}  // namespace dstrain::launcher
