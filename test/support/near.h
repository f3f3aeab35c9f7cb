#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/norm.h>
#include <fmt/format.h>

#include <string>

#include "test/support/roundoff.h"

namespace dstrain::test {

/// What rounding explains in chains of operators too long for test/support/bounded.h, relative to
/// the largest value, where data are independent normal numbers: at most 8 values rounded to
/// `dtype`, none larger than the largest, and fp32 sums over n = `length` products. Such a sum is
/// off by lambda sqrt(n) u sum|x||y| (Higham & Mary 2019, doi:10.1137/18M1226312, theorem 2.4; for
/// rounding errors of mean zero, in any order). sum|x||y| is 2 n / pi, and the largest of the sums
/// at least sqrt(n), so relative to it the sum is off by 0.64 lambda n u: lambda = 3.
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

/// Error of the norms.
[[nodiscard]] inline double relative_error(const at::Tensor& actual, const at::Tensor& expected) {
  const at::Tensor e = expected.detach().cpu().to(at::kDouble);
  return ((actual.detach().cpu().to(at::kDouble) - e).norm() / e.norm()).item<double>();
}

}  // namespace dstrain::test
