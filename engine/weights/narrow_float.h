#pragma once

#include <cstdint>

namespace dstrain {

/// The 16-bit formats of files as plain integers, so that reading a file needs no tensor library.
/// To 16 bits: round to nearest, ties to even; NaN stays NaN; fp16 overflows to infinity.
[[nodiscard]] float half_to_float(std::uint16_t bits);
[[nodiscard]] std::uint16_t float_to_half(float value);
[[nodiscard]] float bfloat16_to_float(std::uint16_t bits);
[[nodiscard]] std::uint16_t float_to_bfloat16(float value);

}  // namespace dstrain
