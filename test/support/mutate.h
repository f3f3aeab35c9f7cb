#pragma once

#include <algorithm>
#include <array>
#include <random>
#include <string>

namespace dstrain::test {

/// `text` after a few edits that files suffer or fuzzers make; a pure function of `random`.
inline std::string mutated(std::string text, std::mt19937& random) {
  static const std::array<std::string, 14> kPieces = {std::string(1, '\0'),
                                                      "\xff",
                                                      "\xc3",
                                                      "\"",
                                                      "[[[[",
                                                      "}",
                                                      "{\"a\":",
                                                      "1e999",
                                                      "-1",
                                                      "18446744073709551616",
                                                      "\\u0000",
                                                      "null",
                                                      "\n",
                                                      std::string(300, 'a')};
  const auto below = [&](std::size_t max) { return max == 0 ? 0 : random() % max; };
  for (std::size_t edits = 1 + below(4); edits > 0; --edits) {
    const std::size_t at = below(text.size() + 1);
    const std::size_t length = std::min(text.size() - at, below(16));
    switch (below(6)) {
      case 0:
        if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
        break;
      case 1:
        if (at < text.size()) text[at] = static_cast<char>(below(256));
        break;
      case 2:
        text.erase(at, length);
        break;
      case 3:
        text.insert(at, kPieces[below(kPieces.size())]);
        break;
      case 4:
        text.insert(at, text.substr(at, length));
        break;
      default:
        if (below(8) == 0) text.resize(at);  // cut off
    }
  }
  return text;
}

}  // namespace dstrain::test
