#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace dstrain {

/// `text` as a terminal may see it: UTF-8 stays, with its tabs and line ends. What could drive the
/// terminal or mislead the reader is written out: other control characters (ESC as "\x1b", a C1
/// control as "\u009b"), marks that change the direction of text or begin a line, and bytes that
/// are no UTF-8 ("\xff"). JSON text keeps its meaning, since in JSON these stand in strings alone.
[[nodiscard]] std::string printable(std::string_view text);

/// The same for a part of a message, such as a name or a value: on one line, cut after `max_bytes`
/// bytes.
[[nodiscard]] std::string shown(std::string_view text, std::size_t max_bytes = 60);

/// Position of the first byte that is not part of valid UTF-8; npos when all is valid.
[[nodiscard]] std::size_t first_invalid_utf8(std::string_view text);
/// One line that printable() leaves as it is, without tabs.
[[nodiscard]] bool is_plain_text(std::string_view text);
/// The first character of `text` that printable() writes out; empty when there is none.
[[nodiscard]] std::string_view first_unprintable(std::string_view text);

}  // namespace dstrain
