#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace dstrain {

/// A quote or bracket that opens a value and has no end.
struct Unclosed {
  std::size_t at = 0;
  char opening = '"';
};

/// The first quote that its line does not close, else the last bracket that stays open. yaml-cpp
/// takes a quote that is open at the end of the text for closed there, and texts of several lines
/// have no place in a recipe.
[[nodiscard]] std::optional<Unclosed> find_unclosed(std::string_view text);

}  // namespace dstrain
