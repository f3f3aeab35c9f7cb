#pragma once

#include <string_view>

#include "engine/chat/syntax.h"

namespace dstrain::chat {

/// The statements of a Jinja template. SyntaxFault for mistakes, and for what Jinja has and this
/// does not: blocks, imports, filters and tests by name.
[[nodiscard]] Body parse_template(std::string_view text);

}  // namespace dstrain::chat
