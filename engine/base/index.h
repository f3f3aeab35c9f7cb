#pragma once

#include <cstddef>
#include <cstdint>

namespace dstrain {

/// A number that is never negative, as containers want it.
[[nodiscard]] constexpr std::size_t to_index(std::int64_t i) { return static_cast<std::size_t>(i); }

}  // namespace dstrain
