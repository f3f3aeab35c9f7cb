#include "engine/kernels/conv/depthwise.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "engine/kernels/conv/conv_context.h"
#include "engine/kernels/conv/kernels.h"
#include "engine/kernels/gradient_sink.h"
#include "engine/kernels/op_support.h"

namespace dstrain::ops {
namespace {

kernels::DepthwiseShape kernel_shape(const at::Tensor& x, const ConvShape& shape) {
  return {.samples = x.size(0),
          .height = x.size(1),
          .width = x.size(2),
          .out_height = shape.output_side(x.size(1)),
          .out_width = shape.output_side(x.size(2)),
          .channels = shape.in,
          .kernel = static_cast<int>(shape.kernel),
          .stride = static_cast<int>(shape.stride),
          .before = static_cast<int>(shape.before)};
}

struct Convolved {
  at::Tensor y;
  GpuSums sums;  ///< of y; undefined where the norm behind it is fixed
};

Convolved convolved(const at::Tensor& x, const std::optional<GpuStatistics>& statistics,
                    ImageActivation activation, const at::Tensor& weight, const ConvShape& shape,
                    const BatchNormCall& after) {
  const kernels::DepthwiseShape s = kernel_shape(x, shape);
  Convolved made{.y = at::empty({s.samples, s.out_height, s.out_width, s.channels}, x.options()),
                 .sums = {}};
  if (!after.fixed) {
    made.sums = {
        .partial = scratch(x, {kernels::depthwise_partials(s, kernel_dtype(x)), 2, s.channels}),
        .centre = scratch(x, {s.channels})};
  }
  kernels::cuda::depthwise(
      {.x = x.const_data_ptr(),
       .scale = statistics ? statistics->scale() : nullptr,
       .shift = statistics ? statistics->shift() : nullptr,
       .weight = weight.const_data_ptr(),
       .y = made.y.mutable_data_ptr(),
       .centre = after.fixed ? nullptr : made.sums.centre.mutable_data_ptr<float>(),
       .valid = valid_pointer(after.valid),
       .partial = after.fixed ? nullptr : made.sums.partial.mutable_data_ptr<float>(),
       .shape = s,
       .activation = kernel_activation(activation),
       .dtype = kernel_dtype(x)},
      current_stream());
  return made;
}

struct InputGradient {
  at::Tensor dz;    ///< before the activation of the input
  at::Tensor sums;  ///< of it, for the norm before; undefined without one
};

InputGradient input_gradient_of(const KeptDepthwise& of,
                                const std::optional<GpuStatistics>& statistics,
                                const DepthwiseGradient& with) {
  const kernels::DepthwiseShape s = kernel_shape(of.x, of.shape);
  const kernels::DType dtype = kernel_dtype(of.x);
  const std::int64_t rows = kernels::depthwise_backward_partials(s, dtype);
  InputGradient made{.dz = at::empty_like(of.x), .sums = {}};
  if (statistics) made.sums = scratch(of.x, {rows, 2, s.channels});
  at::Tensor weight_partial;
  if (of.weight.trainable)
    weight_partial = scratch(of.x, {rows, of.shape.kernel * of.shape.kernel, s.channels});
  const auto floats = [](const at::Tensor& t, std::int64_t offset = 0) {
    return t.defined() ? t.mutable_data_ptr<float>() + offset : nullptr;
  };
  const GpuStatistics after(of.out.after);
  const Fp32Sum grad_weight = GradientSink(of.weight, of.x).fp32(/*can_write=*/true);
  kernels::cuda::depthwise_backward(
      {.x = of.x.const_data_ptr(),
       .mean = statistics ? statistics->mean() : nullptr,
       .scale = statistics ? statistics->scale() : nullptr,
       .shift = statistics ? statistics->shift() : nullptr,
       .weight = value_of(of.weight, of.x).const_data_ptr(),
       .grad = with.dy.const_data_ptr(),
       .following = {.y = of.out.y.const_data_ptr(),
                     .mean = after.mean(),
                     .scale = after.scale(),
                     .shift = after.shift(),
                     .slope = floats(with.slope_offset),
                     .offset = floats(with.slope_offset, s.channels),
                     .gate = floats(with.gate),
                     .grad_mean = floats(with.mean),
                     .activation = kernel_activation(of.after.activation)},
       .valid = valid_pointer(of.after.valid),
       .grad_x = made.dz.mutable_data_ptr(),
       .partial = floats(made.sums),
       .grad_weight = grad_weight.data(),
       .weight_partial = floats(weight_partial),
       .shape = s,
       .activation = kernel_activation(of.before ? of.before->activation : ImageActivation::none),
       .dtype = dtype,
       .write_weight = grad_weight.write()},
      current_stream());
  grad_weight.finish();
  return made;
}

}  // namespace

bool depthwise_has_kernel(const at::Tensor& x, const ConvShape& shape) {
  return x.is_cuda() && x.dim() == 4 && shape.depthwise() && shape.out == shape.in &&
         kernels::depthwise_fits(kernel_shape(x, shape));
}

DepthwiseOutput depthwise_forward(const at::Tensor& x, const BatchNormCall* before,
                                  const ConvShape& shape, const Parameter& weight,
                                  const BatchNormCall& after) {
  std::optional<GpuStatistics> statistics;
  if (before != nullptr) statistics = gpu_statistics(x, *before);
  const Convolved made =
      convolved(x, statistics, before == nullptr ? ImageActivation::none : before->activation,
                value_of(weight, x), shape, after);
  return {.before = statistics ? statistics->all() : at::Tensor(),
          .y = made.y,
          .after = gpu_statistics(made.y, after, made.sums).all()};
}

void keep_depthwise(torch::autograd::AutogradContext* context, const BatchNormCall* before,
                    const ConvShape& shape, Parameter& weight, const BatchNormCall& after) {
  context->saved_data["normed"] = before != nullptr;
  if (before != nullptr) keep_call(context, *before, "before");
  keep_call(context, after, "after");
  keep(context, "depthwise", &weight);
  keep_shape(context, shape, "depthwise_shape");
}

KeptDepthwise kept_depthwise(torch::autograd::AutogradContext* context, const at::Tensor& x,
                             const DepthwiseOutput& out) {
  std::optional<KeptBatchNorm> before;
  if (context->saved_data.at("normed").toBool()) before.emplace(kept_call(context, "before"));
  return {.x = x,
          .out = out,
          .before = before,
          .weight = kept(context, "depthwise"),
          .shape = kept_shape(context, "depthwise_shape"),
          .after = kept_call(context, "after")};
}

at::Tensor depthwise_backward(const KeptDepthwise& of, const DepthwiseGradient& with,
                              bool for_input) {
  std::optional<GpuStatistics> statistics;
  if (of.before) statistics.emplace(of.out.before);
  const InputGradient made = input_gradient_of(of, statistics, with);
  if (of.before) {
    at::Tensor slope_offset;
    if (of.before->needs_sums(for_input)) {
      slope_offset = gpu_finish_gradient(made.sums, *statistics, of.before->weight, of.before->bias,
                                         of.before->sharing());
    }
    if (for_input)
      gpu_input_gradient_in_place(made.dz, of.x, *statistics, slope_offset, of.before->valid);
  }
  return for_input ? made.dz : at::Tensor();
}

}  // namespace dstrain::ops
