#pragma once

#include <concepts>

namespace dstrain {

/// Ending of a noun after `count`: "1 rank", "2 ranks".
[[nodiscard]] constexpr const char* plural(std::integral auto count) {
  return count == 1 ? "" : "s";
}

}  // namespace dstrain
