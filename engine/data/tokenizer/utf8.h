#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace dstrain {

inline constexpr char32_t kReplacementCharacter = 0xfffd;

/// One step through UTF-8: a code point, or the longest part that no valid sequence begins with.
struct CodePoint {
  char32_t value = kReplacementCharacter;
  std::size_t length = 1;  ///< bytes
  bool valid = false;
};

/// What begins at byte `at` of a text, `at` < text.size().
[[nodiscard]] CodePoint code_point_at(std::string_view text, std::size_t at);

/// The start of the code point that ends before byte `end` > 0 of UTF-8.
[[nodiscard]] std::size_t start_of_last(std::string_view text, std::size_t end);

[[nodiscard]] bool is_utf8(std::string_view text);

/// Each maximal ill-formed part becomes one U+FFFD, like Python's errors="replace" (Unicode 16,
/// section 3.9).
[[nodiscard]] std::string replace_invalid_utf8(std::string_view text);

void append_utf8(std::string& text, char32_t code_point);

}  // namespace dstrain
