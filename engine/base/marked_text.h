#pragma once

#include <string_view>

namespace dstrain {

/// Text to standard output that stands out: green on a terminal, elsewhere in [[ ]]. As print_text.
void print_marked_text(std::string_view text);

}  // namespace dstrain
