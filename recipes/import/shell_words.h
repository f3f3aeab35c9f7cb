#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dstrain::importing {

/// The words of a command line, cut as a POSIX shell does: quotes, backslashes, continued lines, no
/// expansion. Error{usage} for a quote without end or what needs a shell: pipes, `;`, redirections.
[[nodiscard]] std::vector<std::string> shell_words(std::string_view line);

}  // namespace dstrain::importing
