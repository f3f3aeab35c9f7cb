#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "test/support/roundoff.h"

/// What a computation in fp32 may give, from the arithmetic alone: running error analysis
/// (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed. 2002, section 3.3). The bounds
/// hold for any order of summation, with and without fused multiply-add, so for every CPU, number
/// of threads and library. What computing here in double adds is 2^-29 of it.
namespace dstrain::test {

struct Bounded;
/// x as a computation leaves it in `dtype`: one more rounding.
[[nodiscard]] Bounded rounded(const Bounded& x, at::ScalarType dtype = at::kFloat);

/// The exact result in double, and how far a computed one may lie from it, element by element.
struct Bounded {
  at::Tensor value, error;

  Bounded(const at::Tensor& exact)  // NOLINT(google-explicit-constructor): inputs are exact
      : value(exact.detach().cpu().to(at::kDouble)), error(at::zeros_like(value)) {}
  Bounded(at::Tensor result, at::Tensor bound)
      : value(std::move(result)), error(std::move(bound)) {}

  /// The largest magnitude that a computed element may have.
  [[nodiscard]] at::Tensor reach() const { return value.abs() + error; }

  friend Bounded operator+(const Bounded& a, const Bounded& b) {
    return rounded({a.value + b.value, a.error + b.error});
  }
  friend Bounded operator-(const Bounded& a, const Bounded& b) {
    return rounded({a.value - b.value, a.error + b.error});
  }
  friend Bounded operator*(const Bounded& a, const Bounded& b) {
    return rounded({a.value * b.value, a.value.abs() * b.error + a.error * b.reach()});
  }
  /// The factor is rounded to fp32, too.
  friend Bounded operator*(const Bounded& a, double factor) {
    const Bounded exact{a.value * factor, a.error * std::abs(factor)};
    return rounded(rounded(exact));
  }
  /// b's bound must leave it apart from zero.
  friend Bounded operator/(const Bounded& a, const Bounded& b) {
    const at::Tensor value = a.value / b.value;
    return rounded({value, (a.error + value.abs() * b.error) / (b.value.abs() - b.error)});
  }
};

inline Bounded rounded(const Bounded& x, at::ScalarType dtype) {
  return {x.value, x.error + x.reach() * unit_roundoff(dtype) + min_rounding(dtype)};
}

/// Another view of the same elements: view(tensor) -> tensor without arithmetic.
template <typename View>
[[nodiscard]] Bounded viewed(const Bounded& x, const View& view) {
  return {view(x.value), view(x.error)};
}
[[nodiscard]] inline Bounded transposed(const Bounded& x) {
  return viewed(x, [](const at::Tensor& t) { return t.transpose(-2, -1); });
}
[[nodiscard]] inline Bounded narrowed(const Bounded& x, std::int64_t dim, std::int64_t first,
                                      std::int64_t size) {
  return viewed(x, [&](const at::Tensor& t) { return t.narrow(dim, first, size); });
}
[[nodiscard]] inline Bounded joined(const Bounded& a, const Bounded& b, std::int64_t dim) {
  return {at::cat({a.value, b.value}, dim), at::cat({a.error, b.error}, dim)};
}

/// The sum over one dimension, which stays with size 1: gamma_n of the magnitudes (section 4.2).
[[nodiscard]] inline Bounded sum(const Bounded& x, std::int64_t dim) {
  const at::Tensor magnitudes = x.reach().sum(dim, true);
  return {x.value.sum(dim, true), x.error.sum(dim, true) + magnitudes * gamma(x.value.size(dim))};
}
[[nodiscard]] inline Bounded mean(const Bounded& x, std::int64_t dim) {
  return sum(x, dim) * (1 / static_cast<double>(x.value.size(dim)));
}

/// Matrix products, of batches too: gamma_k |a| |b| (section 3.5).
[[nodiscard]] inline Bounded product(const Bounded& a, const Bounded& b) {
  return {at::matmul(a.value, b.value),
          at::matmul(a.value.abs(), b.error) + at::matmul(a.error, b.reach()) +
              at::matmul(a.reach(), b.reach()) * gamma(a.value.size(-1))};
}

/// f(x) from value = f(x.value), a bound of |f'| over x's interval, and the error of computing f.
[[nodiscard]] inline Bounded applied(const Bounded& x, const at::Tensor& value,
                                     const at::Tensor& slope, const at::Tensor& own_error) {
  return {value, x.error * slope + own_error};
}

/// exp is off by 20 units in the last place where ATen's attention vectorises it
/// (at::vec::Vectorized<float>::exp_u20), by one elsewhere.
constexpr double kExpError = 2 * 20 * 0x1p-24;

[[nodiscard]] inline Bounded exp(const Bounded& x) {
  const at::Tensor value = x.value.exp();
  return {value, value * (x.error.expm1() + x.error.exp() * kExpError)};
}
[[nodiscard]] inline Bounded log(const Bounded& x) {
  const at::Tensor value = x.value.log();
  return applied(x, value, (x.value - x.error).reciprocal(), value.abs() * 0x1p-22);
}
/// One over the square root, correct to two units in the last place.
[[nodiscard]] inline Bounded rsqrt(const Bounded& x) {
  const at::Tensor value = x.value.rsqrt(), low = x.value - x.error;
  return applied(x, value, low.pow(-1.5) * 0.5, low.rsqrt() * 0x1p-22);
}

/// Empty when every element of `actual` lies within the bound of `expected`, an independent
/// computation of bound.value in double; otherwise the worst one.
[[nodiscard]] inline std::string far(const at::Tensor& actual, const at::Tensor& expected,
                                     const Bounded& bound) {
  if (actual.sizes() != expected.sizes() || actual.sizes() != bound.value.sizes())
    return "shapes differ";
  if (actual.numel() == 0) return "";
  const at::Tensor e = expected.detach().cpu().to(at::kDouble),
                   a = actual.detach().cpu().to(at::kDouble);
  if (!(bound.value - e).abs().le(bound.error * 1e-3 + 1e-12).all().item<bool>())
    return "the bound is of another formula than the expected value";
  const at::Tensor error = (a - e).abs();
  if (error.le(bound.error).all().item<bool>()) return "";  // false for nan
  const at::Tensor excess = (error / bound.error).nan_to_num(std::numeric_limits<double>::max());
  const auto worst = excess.argmax().item<std::int64_t>();
  const auto at_worst = [&](const at::Tensor& t) { return t.flatten()[worst].item<double>(); };
  return fmt::format("element {}: {:.9g}, expected {:.9g}, off by {:.3g}, allowed {:.3g}", worst,
                     at_worst(a), at_worst(e), at_worst(error), at_worst(bound.error));
}
[[nodiscard]] inline std::string far(const at::Tensor& actual, const Bounded& bound) {
  return far(actual, bound.value, bound);
}

}  // namespace dstrain::test
