#include "engine/kernels/conv/columns.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "engine/kernels/conv/columns_kernel.h"
#include "engine/kernels/conv/image_layout.h"
#include "engine/kernels/gradient_sink.h"
#include "engine/kernels/linear/gemm.h"
#include "engine/kernels/op_support.h"

namespace dstrain::ops {
namespace {

/// [B * H' * W', columns_width].
at::Tensor image_columns(const at::Tensor& x, const ConvShape& shape) {
  const std::int64_t height = shape.output_side(x.size(1)), width = shape.output_side(x.size(2));
  at::Tensor columns = at::empty({x.size(0) * height * width, columns_width(shape)}, x.options());
  kernels::cuda::image_columns({.x = x.const_data_ptr(),
                                .sample_stride = x.stride(0),
                                .row_stride = x.stride(1),
                                .column_stride = x.stride(2),
                                .channel_stride = x.stride(3),
                                .columns = columns.mutable_data_ptr(),
                                .samples = x.size(0),
                                .height = static_cast<int>(x.size(1)),
                                .width = static_cast<int>(x.size(2)),
                                .out_height = static_cast<int>(height),
                                .out_width = static_cast<int>(width),
                                .channels = static_cast<int>(shape.in),
                                .kernel = static_cast<int>(shape.kernel),
                                .stride = static_cast<int>(shape.stride),
                                .before = static_cast<int>(shape.before),
                                .columns_width = static_cast<int>(columns_width(shape)),
                                .dtype = kernel_dtype(x)},
                               current_stream());
  return columns;
}

kernels::DirectShape direct_shape(const at::Tensor& x, const ConvShape& shape) {
  return {.sample_stride = x.stride(0),
          .row_stride = x.stride(1),
          .column_stride = x.stride(2),
          .channel_stride = x.stride(3),
          .samples = x.size(0),
          .height = static_cast<int>(x.size(1)),
          .width = static_cast<int>(x.size(2)),
          .out_height = static_cast<int>(shape.output_side(x.size(1))),
          .out_width = static_cast<int>(shape.output_side(x.size(2))),
          .kernel = static_cast<int>(shape.kernel),
          .stride = static_cast<int>(shape.stride),
          .before = static_cast<int>(shape.before),
          .out = static_cast<int>(shape.out)};
}

std::int64_t window(const ConvShape& shape) { return shape.in * shape.kernel * shape.kernel; }

}  // namespace

at::Tensor convolve_directly(const at::Tensor& x, const at::Tensor& weight, const ConvShape& shape,
                             const at::Tensor& bias, bool relu) {
  const kernels::DirectShape s = direct_shape(x, shape);
  at::Tensor y = at::empty({s.samples, s.out_height, s.out_width, s.out}, x.options());
  kernels::cuda::direct_conv({.x = x.const_data_ptr(),
                              .weight = weight.const_data_ptr(),
                              .bias = bias.defined() ? bias.const_data_ptr() : nullptr,
                              .y = y.mutable_data_ptr(),
                              .shape = s,
                              .relu = relu,
                              .dtype = kernel_dtype(x)},
                             current_stream());
  return y;
}

at::Tensor convolve_columns(const at::Tensor& x, const at::Tensor& weight, const ConvShape& shape) {
  if (by_direct_kernel(shape, x.element_size())) return convolve_directly(x, weight, shape);
  const at::Tensor columns = image_columns(x, shape);
  at::Tensor matrix = weight.view({shape.out, window(shape)});
  if (matrix.size(1) != columns.size(1)) {
    matrix = at::zeros({shape.out, columns.size(1)}, weight.options());
    matrix.narrow(1, 0, window(shape)).copy_(weight.view({shape.out, window(shape)}));
  }
  at::Tensor y =
      at::empty({x.size(0), shape.output_side(x.size(1)), shape.output_side(x.size(2)), shape.out},
                x.options());
  multiply(columns, matrix.t(), pixel_rows(y));
  return y;
}

void add_columns_weight_gradient(const at::Tensor& x, const at::Tensor& dy, const ConvShape& shape,
                                 Parameter& weight) {
  if (by_direct_kernel(shape, x.element_size())) {
    const kernels::DirectShape s = direct_shape(x, shape);
    const Fp32Sum gradient = GradientSink(weight, x).fp32();
    const at::Tensor partial =
        scratch(x, {kernels::direct_partials(s.samples, s.out_height, s.out_width),
                    shape.weight_elements()});
    kernels::cuda::direct_conv_backward({.x = x.const_data_ptr(),
                                         .grad_y = dy.const_data_ptr(),
                                         .partial = partial.mutable_data_ptr<float>(),
                                         .grad_weight = gradient.data(),
                                         .shape = s,
                                         .dtype = kernel_dtype(x)},
                                        current_stream());
    gradient.finish();
    return;
  }
  const at::Tensor columns = image_columns(x, shape);
  const at::Tensor dw = scratch(x, {shape.out, columns.size(1)});
  multiply(pixel_rows(dy).t(), columns, dw);
  GradientSink(weight, x).add(dw.narrow(1, 0, window(shape)));
}

}  // namespace dstrain::ops
