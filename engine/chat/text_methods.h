#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/chat/budget.h"
#include "engine/chat/text.h"

namespace dstrain::chat {

/// Methods of Python's str on text with sources.

/// str.strip, lstrip, rstrip: of the characters of `set`, or of spaces.
[[nodiscard]] Text stripped(const Text& text, const Text* set, bool left, bool right);
/// str.split at `separator`, or at spaces; at most `count` cuts where it is not negative.
[[nodiscard]] std::vector<Text> split(const Text& text, const Text* separator, std::int64_t count,
                                      Budget& budget);
/// str.rsplit at a separator.
[[nodiscard]] std::vector<Text> split_from_right(const Text& text, const Text& separator,
                                                 std::int64_t count, Budget& budget);
[[nodiscard]] std::vector<Text> lines(const Text& text, Budget& budget);
/// str.replace: at most `count` times where it is not negative.
[[nodiscard]] Text replaced(const Text& text, const Text& from, const Text& to, std::int64_t count,
                            Budget& budget);

enum class Case : std::uint8_t { upper, lower, capital };
[[nodiscard]] Text in_case(const Text& text, Case which, Budget& budget);

/// Characters from `begin` in steps, as text[begin:end:step] with Python's rules.
struct SliceRange {
  std::int64_t begin, count, step;
};
[[nodiscard]] SliceRange slice_range(std::optional<std::int64_t> begin,
                                     std::optional<std::int64_t> end,
                                     std::optional<std::int64_t> step, std::int64_t length);
[[nodiscard]] Text sliced(const Text& text, const std::optional<std::int64_t>& begin,
                          const std::optional<std::int64_t>& end,
                          const std::optional<std::int64_t>& step, Budget& budget);

}  // namespace dstrain::chat
