#pragma once

#include <cstddef>

namespace dstrain {

/// A number that is never negative, as containers want it.
[[nodiscard]] constexpr std::size_t to_index(int i) { return static_cast<std::size_t>(i); }

}  // namespace dstrain
