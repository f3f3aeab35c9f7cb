#pragma once

#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>

#include <optional>

#include "engine/kernels/ops.h"
#include "test/support/bounded.h"

/// The operators' formulas with what rounding may do to them: fp32 inside, every result rounded to
/// the dtype of the operands.
namespace dstrain::test {

/// x weight^T.
[[nodiscard]] inline Bounded times(const Bounded& x, const Bounded& weight, at::ScalarType dtype) {
  return rounded(product(x, transposed(weight)), dtype);
}

/// What backward of x weight^T gives: dx, and the fp32 gradient of the weight.
[[nodiscard]] inline Bounded input_gradient(const Bounded& dy, const Bounded& weight,
                                            at::ScalarType dtype) {
  return rounded(product(dy, weight), dtype);
}
[[nodiscard]] inline Bounded weight_gradient(const Bounded& dy, const Bounded& x) {
  return rounded(product(transposed(dy), x));
}
/// The sum over rows, as one row or as a vector.
[[nodiscard]] inline Bounded row_sum(const Bounded& dy) {
  return viewed(sum(dy, 0), [](const at::Tensor& t) { return t.squeeze(0); });
}

inline constexpr double kQuick = 1.702;  ///< of the quick GELU

/// z (1 + erf(z / sqrt 2)) / 2 or its tanh form. |GELU'| <= 1.13. Both forms cancel in 1 + erf, so
/// their error is one of z / 2: erf by oneDNN's polynomial is off by 1.5e-7 = 2.5 u (Abramowitz &
/// Stegun 7.1.26), tanh by 2 u and its argument by 4 u of itself. The quick form is that of SiLU at
/// 1.702 z.
[[nodiscard]] inline Bounded gelu(const Bounded& z, ops::Gelu kind) {
  if (kind == ops::Gelu::quick) {
    const at::Tensor quick = z.value * at::sigmoid(z.value * kQuick);
    return applied(z, quick, at::full_like(quick, 1.13),
                   quick.abs() * (2 * kExpError + 8 * 0x1p-24));
  }
  const char* name = kind == ops::Gelu::tanh ? "tanh" : "none";
  return applied(z, at::gelu(z.value, name), at::full_like(z.value, 1.13),
                 z.reach() * (8 * 0x1p-24));
}
/// GELU'. |GELU''| <= 0.8, of the quick form 0.86. Of its terms one holds z exp(-z^2 / 2), one
/// (tanh) z^3 (1 - tanh^2).
[[nodiscard]] inline Bounded gelu_slope(const Bounded& z, ops::Gelu kind) {
  if (kind == ops::Gelu::quick) {
    const at::Tensor share = at::sigmoid(z.value * kQuick);
    return applied(z, share + z.value * kQuick * share * (1 - share), at::full_like(share, 0.86),
                   share * (kQuick * z.reach() + 1) * (4 * kExpError));
  }
  const char* name = kind == ops::Gelu::tanh ? "tanh" : "none";
  const at::Tensor value = at::gelu_backward(at::ones_like(z.value), z.value, name);
  return applied(z, value, at::full_like(z.value, 0.8), (z.reach().pow(3) * 2 + 16) * 0x1p-24);
}

/// z / (1 + exp(-z)). |silu'| <= 1.1.
[[nodiscard]] inline Bounded silu(const Bounded& z) {
  const at::Tensor value = at::silu(z.value);
  return applied(z, value, at::full_like(value, 1.1), value.abs() * (kExpError + 4 * 0x1p-24));
}
/// silu' = s (1 + z (1 - s)) with s = sigmoid(z). |silu''| <= 0.5.
[[nodiscard]] inline Bounded silu_slope(const Bounded& z) {
  const at::Tensor value = at::silu_backward(at::ones_like(z.value), z.value);
  return applied(z, value, at::full_like(value, 0.5),
                 at::sigmoid(z.value) * (z.reach() + 1) * (2.5 * kExpError));
}

/// A norm's results: y, and its gradients in fp32 before `dx` is added to anything.
struct NormBounds {
  Bounded y, dx, dweight;
};

/// x / sqrt(mean(x^2) + eps) * weight and its gradients for dy; the weight after rounding.
[[nodiscard]] inline NormBounds rms_norm(const Bounded& x, const Bounded& weight, double eps,
                                         const Bounded& dy, at::ScalarType dtype) {
  const at::Tensor small = at::full({1, 1}, eps, at::kDouble);
  const Bounded rstd = rsqrt(mean(x * x, 1) + rounded(Bounded(small)));
  const Bounded x_hat = x * rstd, scaled = dy * weight;
  return {.y = rounded(rounded(x_hat, dtype) * weight, dtype),
          .dx = rstd * (scaled - x_hat * mean(scaled * x_hat, 1)),
          .dweight = row_sum(dy * x_hat)};
}

/// (x - mean) / sqrt(variance + eps) * weight + bias. Its variance may be computed by updates:
/// error of n kappa u of it, with kappa^2 = mean(x^2) / variance (Chan, Golub & LeVeque 1983,
/// table 1), where two passes have n u. ATen's backward multiplies out x - mean, so errors are
/// those of |x| + |mean|.
[[nodiscard]] inline NormBounds layer_norm(const Bounded& x, const Bounded& weight,
                                           const Bounded& bias, double eps, const Bounded& dy,
                                           at::ScalarType dtype) {
  const at::Tensor small = at::full({1, 1}, eps, at::kDouble);
  const std::int64_t dim = x.value.size(1);
  const Bounded middle = mean(x, 1), centred = x - middle;
  Bounded variance = mean(centred * centred, 1);
  variance.error = variance.error + x.reach().pow(2).mean(1, true) * (2 * gamma(dim));
  const Bounded rstd = rsqrt(variance + rounded(Bounded(small)));
  const at::Tensor width = x.reach() + middle.reach();
  /// x_hat from x rstd - mean rstd.
  Bounded x_hat = centred * rstd;
  x_hat.error = x_hat.error + width * rstd.reach() * gamma(3);
  const Bounded scaled = dy * weight, mean_scaled = mean(scaled, 1);
  // dx = rstd (scaled - mean(scaled) - x_hat mean(scaled x_hat)), where mean(scaled x_hat) comes
  // from sums of scaled x and scaled * mean.
  Bounded along = mean(scaled * x_hat, 1);
  along.error =
      along.error + (scaled.reach() * width).mean(1, true) * rstd.reach() * gamma(dim + 4);
  Bounded dx = rstd * (scaled - mean_scaled - x_hat * along);
  dx.error = dx.error + rstd.reach() * width * rstd.reach() * along.reach() * gamma(8);
  return {.y = rounded(x_hat * weight + bias, dtype), .dx = dx, .dweight = row_sum(dy * x_hat)};
}

struct LossBounds {
  Bounded loss, dlogits;
};

/// The weighted sum of cross entropies of fp32 logits [M, C], and `factor` times its gradient.
[[nodiscard]] inline LossBounds cross_entropy(const Bounded& z, const at::Tensor& labels,
                                              const at::Tensor& weights, double smoothing,
                                              double factor) {
  const auto classes = z.value.size(1);
  const Bounded top = Bounded(z.value.amax(1, true));  // any constant would do
  const Bounded log_sum = top + log(sum(exp(z - top), 1));
  const Bounded own =
      viewed(z, [&](const at::Tensor& t) { return t.gather(1, labels.unsqueeze(1)); });
  Bounded each = (log_sum - own) * (1 - smoothing);
  if (smoothing > 0) each = each + (log_sum - mean(z, 1)) * smoothing;
  const Bounded w(weights.unsqueeze(1));
  const Bounded hot(at::one_hot(labels, classes).to(at::kDouble) * (1 - smoothing) +
                    smoothing / static_cast<double>(classes));
  const Bounded dlogits = rounded(exp(z - log_sum) - rounded(rounded(hot))) * (w * factor);
  return {.loss = viewed(sum(each * w, 0), [](const at::Tensor& t) { return t.squeeze(); }),
          .dlogits = dlogits};
}

}  // namespace dstrain::test
