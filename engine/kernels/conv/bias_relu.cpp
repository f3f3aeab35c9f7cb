#include "engine/kernels/conv/bias_relu.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/threshold_backward.h>

#include "engine/kernels/batch_norm/kernels.h"
#include "engine/kernels/conv/image_layout.h"
#include "engine/kernels/conv/relu_kernel.h"
#include "engine/kernels/gradient_sink.h"
#include "engine/kernels/op_support.h"

namespace dstrain::ops {
namespace {

at::Tensor bias_relu_gradient_cuda(const at::Tensor& dy, const at::Tensor& y, Parameter* bias) {
  const std::int64_t channels = dy.size(3), rows = dy.numel() / channels;
  float* gradient = bias == nullptr ? nullptr : GradientSink(*bias, dy).vector();
  at::Tensor dz = at::empty_like(dy), partial;
  if (gradient != nullptr)
    partial = scratch(dy, {kernels::bias_relu_partials(rows, channels), channels});
  kernels::cuda::bias_relu_backward({.y = y.const_data_ptr(),
                                     .grad_y = dy.const_data_ptr(),
                                     .grad_z = dz.mutable_data_ptr(),
                                     .grad_bias = gradient,
                                     .partial = fp32_or_null(partial),
                                     .rows = rows,
                                     .channels = channels,
                                     .dtype = kernel_dtype(dy)},
                                    current_stream());
  return dz;
}

}  // namespace

void add_bias_relu(const at::Tensor& y, const at::Tensor& bias, bool relu) {
  if (!y.is_cuda() || !bias.defined()) {
    if (bias.defined()) y.add_(bias);
    if (relu) y.relu_();
    return;
  }
  const at::Tensor shift = bias.to(at::kFloat);
  kernels::cuda::batch_norm_apply(
      {.x = y.const_data_ptr(),
       .scale = nullptr,
       .shift = shift.const_data_ptr<float>(),
       .residual = nullptr,
       .gate = nullptr,
       .y = y.mutable_data_ptr(),
       .samples = y.size(0),
       .pixels = y.size(1) * y.size(2),
       .channels = y.size(3),
       .activation = relu ? kernels::Activation::relu : kernels::Activation::none,
       .dtype = kernel_dtype(y)},
      current_stream());
}

at::Tensor bias_relu_gradient(const at::Tensor& dy, const at::Tensor& y, Parameter* bias) {
  if (dy.is_cuda() && y.defined()) return bias_relu_gradient_cuda(dy, y, bias);
  const at::Tensor dz = y.defined() ? at::threshold_backward(dy, y, 0) : dy;
  if (bias != nullptr) GradientSink(*bias, dz).rows(pixel_rows(dz));
  return dz;
}

}  // namespace dstrain::ops
