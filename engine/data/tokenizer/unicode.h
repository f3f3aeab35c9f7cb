#pragma once

#include <array>
#include <span>
#include <string_view>
#include <vector>

namespace dstrain {

/// First and last code point.
struct CodeRange {
  char32_t first = 0;
  char32_t last = 0;
};

/// White_Space, which has not changed since Unicode 6.3; it is `\s` of `tokenizers`, while PCRE2's
/// holds U+180E too.
inline constexpr std::array<CodeRange, 10> kWhiteSpace = {{{0x9, 0xd},
                                                           {0x20, 0x20},
                                                           {0x85, 0x85},
                                                           {0xa0, 0xa0},
                                                           {0x1680, 0x1680},
                                                           {0x2000, 0x200a},
                                                           {0x2028, 0x2029},
                                                           {0x202f, 0x202f},
                                                           {0x205f, 0x205f},
                                                           {0x3000, 0x3000}}};

/// The code points of a general category ("L", "Lu") that Unicode 15, 15.1 and 16 added:
/// `tokenizers` knows them, PCRE2 10.42 (Unicode 14) does not. In order, neighbours joined.
[[nodiscard]] std::vector<CodeRange> newer_than_unicode_14(std::string_view category);

/// Code points that Unicode 10 to 18 added and that take part in normalisation there; `tokenizers`
/// normalises by Unicode 9, where they are unassigned and stay as they are.
[[nodiscard]] std::span<const CodeRange> normalised_since_unicode_10();

}  // namespace dstrain
