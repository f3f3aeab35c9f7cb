#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <string>

namespace dstrain::test {

/// Half the distance between 1 and the next number.
[[nodiscard]] inline double unit_roundoff(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBFloat16:
      return 0x1p-8;
    case at::kHalf:
      return 0x1p-11;
    case at::kFloat:
      return 0x1p-24;
    default:
      return 0x1p-53;
  }
}

/// What rounding explains, relative to the largest value: a few roundings to `dtype`, and fp32 sums
/// over `length` terms.
[[nodiscard]] inline double tolerance(at::ScalarType dtype, std::int64_t length) {
  return 8 * unit_roundoff(dtype) + 2 * unit_roundoff(at::kFloat) * static_cast<double>(length);
}

/// Empty when `actual` equals `expected` within the tolerance; otherwise how far they are apart.
[[nodiscard]] inline std::string far(const at::Tensor& actual, const at::Tensor& expected,
                                     at::ScalarType dtype, std::int64_t length) {
  if (actual.sizes() != expected.sizes()) return "shapes differ";
  if (actual.numel() == 0) return "";
  const at::Tensor a = actual.detach().cpu().to(at::kDouble),
                   e = expected.detach().cpu().to(at::kDouble);
  const double largest = e.abs().max().item<double>(), error = (a - e).abs().max().item<double>();
  const double allowed = tolerance(dtype, length) * largest;
  if (error <= allowed) return "";  // false for nan
  return fmt::format("off by {:.3g} of {:.3g}, allowed {:.3g}", error, largest, allowed);
}

}  // namespace dstrain::test
