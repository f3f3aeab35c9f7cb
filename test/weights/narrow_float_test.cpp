#include "engine/weights/narrow_float.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <bit>
#include <cmath>

#include "engine/base/philox.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) ||
         std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

TEST_CASE("all 65,536 half and bfloat16 values widen as LibTorch's", "[models]") {
  int wrong = 0;
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    wrong +=
        !same(half_to_float(bits), static_cast<float>(c10::Half(bits, c10::Half::from_bits())));
    wrong += !same(bfloat16_to_float(bits),
                   static_cast<float>(c10::BFloat16(bits, c10::BFloat16::from_bits())));
  }
  CHECK(wrong == 0);
}

TEST_CASE("floats narrow as LibTorch's, ties and specials included", "[models]") {
  const auto check = [](float value) {
    if (std::isnan(value)) {
      return std::isnan(half_to_float(float_to_half(value))) &&
             std::isnan(bfloat16_to_float(float_to_bfloat16(value)));
    }
    // On aarch64 Half takes no float.
    return float_to_half(value) == c10::detail::fp16_ieee_from_fp32_value(value) &&
           float_to_bfloat16(value) == c10::BFloat16(value).x;
  };
  int wrong = 0;
  for (std::uint64_t i = 0; i < 200000; ++i) {
    const std::uint32_t bits = Philox::at(1, 0, i).word[0];
    wrong += !check(std::bit_cast<float>(bits));
    wrong += !check(half_to_float(static_cast<std::uint16_t>(bits)) *
                    (1 + 0x1p-11f));  // half-way between two halves
  }
  for (const float value : {0.0f, -0.0f, 65504.0f, 65519.0f, 65520.0f, 0x1p-24f, 0x1p-25f,
                            0x1.8p-25f, 0x1p-26f, 3e38f}) {
    wrong += !check(value) + !check(-value);
  }
  CHECK(wrong == 0);
}

}  // namespace
}  // namespace dstrain
