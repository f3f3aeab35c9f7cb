#pragma once

#include <span>

namespace dstrain {

/// digits.csv.gz as it stands in the source tree; made by embed.cmake.
extern const std::span<const unsigned char> kDigitsFile;

}  // namespace dstrain
