#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace dstrain::chat {

/// Characters of valid UTF-8, as Python's str sees them.

/// The code point at `at`, which moves behind it.
[[nodiscard]] char32_t next_character(std::string_view text, std::size_t& at);
void append_utf8(std::string& text, char32_t character);
[[nodiscard]] std::size_t count_characters(std::string_view text);
/// Byte where character `index` begins; text.size() when there are fewer.
[[nodiscard]] std::size_t byte_of_character(std::string_view text, std::size_t index);

/// str.isspace, and `\s` of a regular expression.
[[nodiscard]] bool is_space(char32_t character);
/// str.isprintable
[[nodiscard]] bool is_printable(char32_t character);
/// Without the spaces at its start or end.
[[nodiscard]] std::size_t skip_spaces(std::string_view text, std::size_t at = 0);
[[nodiscard]] std::size_t end_without_spaces(std::string_view text);

/// One character to one or more bytes. Fault for the few whose other case has several characters or
/// depends on their place.
void append_upper(std::string& text, char32_t character);
void append_lower(std::string& text, char32_t character);
void append_title(std::string& text, char32_t character);

/// repr of a float: the shortest digits that give it back.
[[nodiscard]] std::string python_float(double value);
/// repr of a text, quotes included.
[[nodiscard]] std::string python_quoted(std::string_view text);

}  // namespace dstrain::chat
