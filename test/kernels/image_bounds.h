#pragma once

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/conv_transpose2d.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/hardswish.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <array>

#include "engine/kernels/conv/kernels.h"
#include "test/kernels/bounds.h"

/// Depthwise convolutions and activations of images with what rounding may do to them.
namespace dstrain::test {

/// A map that is linear in both arguments, as a sum of at most n products.
template <typename Map>
[[nodiscard]] Bounded bilinear(const Map& map, const Bounded& a, const Bounded& b, std::int64_t n) {
  return rounded({map(a.value, b.value), map(a.value.abs(), b.error) + map(a.error, b.reach()) +
                                             map(a.reach(), b.reach()) * gamma(n)});
}

/// A depthwise convolution and its gradients by ATen, in double; images [B, H, W, C], weight [C, K
/// K].
struct DepthwiseMaps {
  kernels::DepthwiseShape s;

  [[nodiscard]] at::Tensor convolve(const at::Tensor& x, const at::Tensor& weight) const {
    return at::convolution(padded(x), taps(weight), {}, {s.stride, s.stride}, {0, 0}, {1, 1}, false,
                           {0, 0}, s.channels)
        .permute({0, 2, 3, 1});
  }
  [[nodiscard]] at::Tensor input_gradient(const at::Tensor& grad, const at::Tensor& weight) const {
    const at::Tensor whole = at::conv_transpose2d(grad.permute({0, 3, 1, 2}), taps(weight), {},
                                                  {s.stride, s.stride}, {0, 0}, {0, 0}, s.channels);
    const std::int64_t after_y = s.height + s.before - whole.size(2),
                       after_x = s.width + s.before - whole.size(3);
    return at::constant_pad_nd(whole, {-s.before, after_x, -s.before, after_y})
        .permute({0, 2, 3, 1});
  }
  [[nodiscard]] at::Tensor weight_gradient(const at::Tensor& grad, const at::Tensor& x) const {
    const at::Tensor weight = at::zeros({s.channels, 1, s.kernel, s.kernel}, at::kDouble);
    const auto [dx, dw, db] = at::convolution_backward(
        grad.permute({0, 3, 1, 2}).contiguous(), padded(x), weight, at::OptionalIntArrayRef(),
        {s.stride, s.stride}, {0, 0}, {1, 1}, false, {0, 0}, s.channels,
        std::array<bool, 3>{false, true, false});
    return dw.reshape({s.channels, s.kernel * s.kernel});
  }

 private:
  [[nodiscard]] at::Tensor padded(const at::Tensor& x) const {
    const auto after = [&](std::int64_t out, std::int64_t in) {
      return (out - 1) * s.stride + s.kernel - s.before - in;
    };
    return at::constant_pad_nd(x.permute({0, 3, 1, 2}), {s.before, after(s.out_width, s.width),
                                                         s.before, after(s.out_height, s.height)})
        .contiguous();
  }
  [[nodiscard]] at::Tensor taps(const at::Tensor& weight) const {
    return weight.view({s.channels, 1, s.kernel, s.kernel});
  }
};

/// `jump` where z may lie on the other side of `corner`.
[[nodiscard]] inline at::Tensor beside(const Bounded& z, double corner, double jump) {
  return (z.value - corner).abs().le(z.error).to(at::kDouble) * jump;
}

[[nodiscard]] inline Bounded activated(const Bounded& z, kernels::Activation activation) {
  using enum kernels::Activation;
  switch (activation) {
    case none:
      return z;
    case relu:
      return {z.value.clamp_min(0), z.error};
    case relu6:
      return {z.value.clamp(0, 6), z.error};
    case silu:
      return test::silu(z);
    case hardswish: {
      const at::Tensor value = at::hardswish(z.value);
      return applied(z, value, at::full_like(value, 1.5), value.abs() * (4 * 0x1p-24));
    }
  }
  return z;
}

[[nodiscard]] inline Bounded activation_slope(const Bounded& z, kernels::Activation activation) {
  using enum kernels::Activation;
  switch (activation) {
    case none:
      return {at::ones_like(z.value)};
    case relu:
      return {z.value.gt(0).to(at::kDouble), beside(z, 0, 1)};
    case relu6:
      return {z.value.gt(0).logical_and(z.value.lt(6)).to(at::kDouble),
              beside(z, 0, 1) + beside(z, 6, 1)};
    case silu:
      return test::silu_slope(z);
    case hardswish: {
      const at::Tensor inner = z.value / 3 + 0.5;
      const at::Tensor value = at::where(z.value.le(-3), at::zeros_like(inner),
                                         at::where(z.value.lt(3), inner, at::ones_like(inner)));
      return {value, z.error / 3 + beside(z, -3, 0.5) + beside(z, 3, 0.5) +
                         value.abs() * (4 * 0x1p-24) + 0x1p-24};
    }
  }
  return z;
}

}  // namespace dstrain::test
