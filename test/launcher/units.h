#pragma once

#include <cstdint>

namespace dstrain::launcher::test {

inline constexpr std::int64_t kGiB = std::int64_t{1} << 30;
inline constexpr std::int64_t kSecond = 1'000'000'000;  ///< in ns

}  // namespace dstrain::launcher::test
