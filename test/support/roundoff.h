#pragma once

#include <c10/core/ScalarType.h>

#include <cmath>
#include <cstdint>

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

/// Half the distance between subnormal numbers: what rounding loses near zero.
[[nodiscard]] inline double min_rounding(at::ScalarType dtype) {
  return dtype == at::kHalf ? 0x1p-25 : 0x1p-127;  // bf16's and fp32's may be flushed to zero
}

/// gamma_n = n u / (1 - n u): n roundings of a value, or a sum of n terms in any order
/// (Higham 2002, lemma 3.1 and equation 4.4). n * u < 1.
[[nodiscard]] inline double gamma(std::int64_t n, double u = 0x1p-24) {
  const double all = static_cast<double>(n) * u;
  return all / (1 - all);
}

/// What dstrain promises of whole models in fp32, and no bound from arithmetic: losses, logits and
/// gradients of one computation that is divided otherwise (ranks, ZeRO stages, micro-batches,
/// packing) differ by this share of the largest value at most.
constexpr double kPromised = 1e-5;

}  // namespace dstrain::test
