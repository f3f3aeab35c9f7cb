#include "engine/kernels/conv/conv.h"

#include <ATen/Context.h>
#include <ATen/ops/_convolution.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <array>
#include <tuple>

#include "engine/base/error.h"
#include "engine/kernels/conv/columns.h"
#include "engine/kernels/conv/image_layout.h"
#include "engine/kernels/gradient_sink.h"
#include "engine/kernels/linear/gemm.h"
#include "engine/kernels/op_support.h"

namespace dstrain::ops {
namespace {

/// What convolution_backward does on a GPU follows from these flags of the process.
void choose_exact_cudnn() {
  static const bool chosen = [] {
    at::globalContext().setDeterministicCuDNN(true);
    at::globalContext().setBenchmarkCuDNN(false);
    at::globalContext().setAllowTF32CuDNN(false);
    return true;
  }();
  static_cast<void>(chosen);
}

/// CPU libraries have no convolutions of all 16-bit types: these are made in fp32.
at::Tensor for_library(const at::Tensor& tensor) {
  return tensor.is_cuda() ? tensor : tensor.to(at::kFloat);
}

/// The image with its uneven zeros, for libraries that know even ones only.
at::Tensor padded(const at::Tensor& image, const ConvShape& shape) {
  if (shape.before == shape.after) return image;
  return at::constant_pad_nd(image, {shape.before, shape.after, shape.before, shape.after});
}

std::int64_t even_padding(const ConvShape& shape) {
  return shape.before == shape.after ? shape.before : 0;
}

/// An image of these sizes [B, H, W, C] whose elements are not read, as PyTorch sees it: on a GPU
/// there is no memory behind it but that of `like`.
at::Tensor shape_alone(at::IntArrayRef sizes, const at::Tensor& like) {
  if (!like.is_cuda()) return channels_second(at::empty(sizes, like.options()));
  return channels_second(at::for_blob(like.data_ptr(), sizes)
                             .options(like.options())
                             .target_device(like.device())
                             .make_tensor());
}

/// (gradient of the image, of the weight), one of them wanted.
std::tuple<at::Tensor, at::Tensor> library_backward(const at::Tensor& dy, const at::Tensor& image,
                                                    const at::Tensor& weight,
                                                    const ConvShape& shape, bool for_input) {
  choose_exact_cudnn();
  const std::int64_t padding = even_padding(shape);
  auto [dx, dw, db] = at::convolution_backward(dy, image, weight, at::OptionalIntArrayRef(),
                                               {shape.stride, shape.stride}, {padding, padding},
                                               {1, 1}, /*transposed=*/false, {0, 0}, shape.groups,
                                               std::array<bool, 3>{for_input, !for_input, false});
  return {dx, dw};
}

}  // namespace

void check_conv(const at::Tensor& x, const ConvShape& shape, const Parameter& weight,
                const Parameter* bias) {
  const at::Tensor& value = value_of(weight, x);
  const std::int64_t room = shape.before + shape.after - shape.kernel;
  DSTRAIN_CHECK(
      x.dim() == 4 && x.size(3) == shape.in && x.size(1) + room >= 0 && x.size(2) + room >= 0 &&
          shape.in % shape.groups == 0 && shape.out % shape.groups == 0 &&
          value.sizes() ==
              at::IntArrayRef({shape.out, shape.in / shape.groups, shape.kernel, shape.kernel}) &&
          (bias == nullptr || is_vector(value_of(*bias, x), shape.out, x.scalar_type(), x)),
      fmt::format("convolution: x {}, weight {}, kernel {}, padding {} and {}", shape_of(x),
                  shape_of(value), shape.kernel, shape.before, shape.after));
}

at::Tensor convolve(const at::Tensor& image, const at::Tensor& weight, const ConvShape& shape) {
  if (image.is_cuda() && by_columns(shape)) return convolve_columns(image, weight, shape);
  const at::Tensor x = dense(image);
  if (shape.pointwise()) {
    at::Tensor y = at::empty({x.size(0), x.size(1), x.size(2), shape.out}, x.options());
    multiply(pixel_rows(x), weight.view({shape.out, shape.in}).t(), pixel_rows(y));
    return y;
  }
  const std::int64_t padding = even_padding(shape);
  const at::Tensor y = at::_convolution(
      padded(channels_second(for_library(x)), shape), for_library(weight), {},
      {shape.stride, shape.stride}, {padding, padding}, {1, 1}, /*transposed=*/false, {0, 0},
      shape.groups, /*benchmark=*/false, /*deterministic=*/true, /*cudnn_enabled=*/true,
      /*allow_tf32=*/false);
  return channels_last(y).to(x.scalar_type());
}

at::Tensor convolve_input_gradient(const at::Tensor& dy, const at::Tensor& weight,
                                   const ConvShape& shape, at::IntArrayRef sizes,
                                   const at::Tensor& other) {
  if (shape.pointwise()) {
    at::Tensor dx = other.defined() ? other : at::empty(sizes, dy.options());
    multiply(pixel_rows(dy), weight.view({shape.out, shape.in}), pixel_rows(dx),
             {.add = other.defined()});
    return dx;
  }
  const std::int64_t pad = shape.before == shape.after ? 0 : shape.before + shape.after;
  const at::Tensor grad = for_library(dy);
  at::Tensor dx = std::get<0>(
      library_backward(channels_second(grad),
                       shape_alone({sizes[0], sizes[1] + pad, sizes[2] + pad, sizes[3]}, grad),
                       for_library(weight), shape, /*for_input=*/true));
  if (pad > 0) dx = dx.narrow(2, shape.before, sizes[1]).narrow(3, shape.before, sizes[2]);
  dx = channels_last(dx).to(dy.scalar_type());
  return other.defined() ? dx.add_(other) : dx;
}

void add_conv_weight_gradient(const at::Tensor& image, const at::Tensor& dy, const ConvShape& shape,
                              Parameter& weight) {
  if (image.is_cuda() && by_columns(shape))
    return add_columns_weight_gradient(image, dy, shape, weight);
  const at::Tensor x = dense(image);
  if (shape.pointwise()) {
    GradientSink(weight, x).product(pixel_rows(dy).t(), pixel_rows(x));
    return;
  }
  const at::Tensor dw = std::get<1>(library_backward(
      channels_second(for_library(dy)), padded(channels_second(for_library(x)), shape),
      for_library(value_of(weight, x)), shape, /*for_input=*/false));
  GradientSink(weight, x).add(dw);
}

}  // namespace dstrain::ops
