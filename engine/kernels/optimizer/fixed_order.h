#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "engine/base/philox.h"

/// Operations that are rounded once and that no compiler joins or splits: arithmetic written with
/// them has equal bits on the GPU, in scalars and in vectors of any width. Nothing is flushed to
/// zero. On the host they want -ffp-contract=off where the compiler may use FMA instructions.
namespace dstrain::fixed_order {

#ifdef __CUDA_ARCH__

DSTRAIN_HOST_DEVICE float add(float a, float b) { return __fadd_rn(a, b); }
DSTRAIN_HOST_DEVICE float sub(float a, float b) { return __fsub_rn(a, b); }
DSTRAIN_HOST_DEVICE float mul(float a, float b) { return __fmul_rn(a, b); }
DSTRAIN_HOST_DEVICE float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
DSTRAIN_HOST_DEVICE float div(float a, float b) { return __fdiv_rn(a, b); }
DSTRAIN_HOST_DEVICE float sqrt(float a) { return __fsqrt_rn(a); }
DSTRAIN_HOST_DEVICE double mul(double a, double b) { return __dmul_rn(a, b); }
DSTRAIN_HOST_DEVICE double fma(double a, double b, double c) { return __fma_rn(a, b, c); }

#else

DSTRAIN_HOST_DEVICE float add(float a, float b) { return a + b; }
DSTRAIN_HOST_DEVICE float sub(float a, float b) { return a - b; }
DSTRAIN_HOST_DEVICE float mul(float a, float b) { return a * b; }
DSTRAIN_HOST_DEVICE float fma(float a, float b, float c) { return std::fma(a, b, c); }
DSTRAIN_HOST_DEVICE float div(float a, float b) { return a / b; }
DSTRAIN_HOST_DEVICE float sqrt(float a) { return std::sqrt(a); }
DSTRAIN_HOST_DEVICE double mul(double a, double b) { return a * b; }
DSTRAIN_HOST_DEVICE double fma(double a, double b, double c) { return std::fma(a, b, c); }

#endif

/// x, with the GPU's one nan in the place of any: which nan an operation gives is the processor's.
DSTRAIN_HOST_DEVICE float one_nan(float x) {
#ifdef __CUDA_ARCH__
  return x;  // of an operation above, so it is that nan already
#else
  return x == x ? x : std::bit_cast<float>(0x7fffffffu);
#endif
}

/// base^exponent by squaring; its relative error is below 2^-52 times the exponent.
DSTRAIN_HOST_DEVICE double power(double base, std::uint64_t exponent) {
  double result = 1;
  for (; exponent > 0; exponent >>= 1) {
    if (exponent & 1) result = mul(result, base);
    base = mul(base, base);
  }
  return result;
}

/// num / (sqrt(square) * factor + offset) for square >= 0.
DSTRAIN_HOST_DEVICE float root_quotient(float num, float square, float factor, float offset) {
  return div(num, fma(sqrt(square), factor, offset));
}

/// The same within 3e-6 where neither square nor the divisor is denormal or infinite: 13 operations
/// and 3 on integers without branches, which costs a GPU less than exact roots and quotients do.
/// Goldschmidt's and Newton's iterations, from values whose bits are those of the input halved or
/// negated (Moroz et al. 2018, arXiv:1603.04483); constants were searched for the least error.
DSTRAIN_HOST_DEVICE float near_root_quotient(float num, float square, float factor, float offset) {
  const auto inverse =
      std::bit_cast<float>(0x5f376120u - (std::bit_cast<std::uint32_t>(square) >> 1));
  float root = mul(square, inverse), half = mul(0.5f, inverse);
  const float rest = fma(-root, half, 0.500877023f);
  root = fma(root, rest, root);
  half = fma(half, rest, half);
  root = fma(root, fma(-root, half, 0.500000596f), root);
  const float divisor = fma(root, factor, offset);
  auto reciprocal = std::bit_cast<float>(0x7ef33400u - std::bit_cast<std::uint32_t>(divisor));
  reciprocal = mul(reciprocal, fma(-divisor, reciprocal, 2.00128007f));
  const float quotient = mul(num, reciprocal);
  return fma(fma(-divisor, quotient, num), reciprocal, quotient);
}

}  // namespace dstrain::fixed_order
