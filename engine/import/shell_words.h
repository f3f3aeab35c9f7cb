#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dstrain::importing {

/// The words of a command line, cut as a POSIX shell does: quotes, backslashes, continued lines,
/// comments, no expansion. Error{usage} for a quote without end, a second command and what needs a
/// shell: pipes, `;`, redirections.
[[nodiscard]] std::vector<std::string> shell_words(std::string_view line);

}  // namespace dstrain::importing
