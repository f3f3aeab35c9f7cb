#include "engine/kernels/conv/ops_depthwise.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <optional>

#include "engine/kernels/batch_norm/batch_norm_context.h"
#include "engine/kernels/batch_norm/batch_norm_gpu.h"
#include "engine/kernels/conv/conv_context.h"
#include "engine/kernels/conv/kernels.h"
#include "engine/kernels/conv/ops_conv.h"
#include "engine/kernels/op_support.h"

namespace dstrain::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

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

bool has_kernel(const at::Tensor& x, const ConvShape& shape) {
  return x.is_cuda() && x.dim() == 4 && shape.depthwise() && shape.out == shape.in &&
         kernels::depthwise_fits(kernel_shape(x, shape));
}

struct Convolved {
  at::Tensor y;
  GpuSums sums;  ///< of y; undefined where the norm behind it is fixed
};

Convolved depthwise_cuda(const at::Tensor& x, const GpuStatistics* statistics,
                         ImageActivation activation, const at::Tensor& weight,
                         const ConvShape& shape, const BatchNormCall& after) {
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
       .scale = statistics == nullptr ? nullptr : statistics->scale(),
       .shift = statistics == nullptr ? nullptr : statistics->shift(),
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

/// What backward has: the input and the norm before it, if any; the convolution's output with the
/// norm behind it; the gradient of that norm's output.
struct DepthwiseInputs {
  at::Tensor x;
  const GpuStatistics* before;
  ImageActivation before_activation;
  at::Tensor y;
  GpuStatistics after;
  ImageActivation after_activation;
  at::Tensor slope_offset;  ///< of the norm behind; undefined: zero
  at::Tensor dy, valid;
};
struct DepthwiseGradients {
  at::Tensor dz;    ///< before the activation of the input
  at::Tensor sums;  ///< of it, for the norm before; undefined without one
};

DepthwiseGradients depthwise_gradients_cuda(const DepthwiseInputs& in, Parameter& weight,
                                            const ConvShape& shape) {
  const kernels::DepthwiseShape s = kernel_shape(in.x, shape);
  const kernels::DType dtype = kernel_dtype(in.x);
  const std::int64_t rows = kernels::depthwise_backward_partials(s, dtype);
  DepthwiseGradients made{.dz = at::empty_like(in.x), .sums = {}};
  if (in.before != nullptr) made.sums = scratch(in.x, {rows, 2, s.channels});
  at::Tensor weight_partial;
  if (weight.trainable)
    weight_partial = scratch(in.x, {rows, shape.kernel * shape.kernel, s.channels});
  const auto floats = [](const at::Tensor& t, std::int64_t offset = 0) {
    return t.defined() ? t.mutable_data_ptr<float>() + offset : nullptr;
  };
  kernels::cuda::depthwise_backward(
      {.x = in.x.const_data_ptr(),
       .mean = in.before == nullptr ? nullptr : in.before->mean(),
       .scale = in.before == nullptr ? nullptr : in.before->scale(),
       .shift = in.before == nullptr ? nullptr : in.before->shift(),
       .weight = value_of(weight, in.x).const_data_ptr(),
       .grad = in.dy.const_data_ptr(),
       .following = {.y = in.y.const_data_ptr(),
                     .mean = in.after.mean(),
                     .scale = in.after.scale(),
                     .shift = in.after.shift(),
                     .slope = floats(in.slope_offset),
                     .offset = floats(in.slope_offset, s.channels),
                     .gate = nullptr,
                     .grad_mean = nullptr,
                     .activation = kernel_activation(in.after_activation)},
       .valid = valid_pointer(in.valid),
       .grad_x = made.dz.mutable_data_ptr(),
       .partial = floats(made.sums),
       .grad_weight = floats(wanted_gradient(weight, in.x)),
       .weight_partial = floats(weight_partial),
       .shape = s,
       .activation = kernel_activation(in.before_activation),
       .dtype = dtype},
      current_stream());
  return made;
}

struct DepthwiseNorm : torch::autograd::Function<DepthwiseNorm> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>&, const BatchNormCall* before,
                            const ConvShape& shape, Parameter* weight, const BatchNormCall& after) {
    const at::Tensor x = dense(input);
    std::optional<GpuStatistics> statistics;
    if (before != nullptr) statistics = gpu_statistics(x, *before);
    const Convolved made =
        depthwise_cuda(x, statistics ? &*statistics : nullptr,
                       before == nullptr ? ImageActivation::none : before->activation,
                       value_of(*weight, x), shape, after);
    const GpuStatistics after_statistics = gpu_statistics(made.y, after, made.sums);
    context->save_for_backward(
        {x, statistics ? statistics->all() : at::Tensor(), made.y, after_statistics.all()});
    context->saved_data["normed"] = before != nullptr;
    if (before != nullptr) keep_call(context, *before, "before");
    keep_call(context, after, "after");
    keep(context, "convolved", weight);
    keep_shape(context, shape);
    return gpu_batch_norm_apply(made.y, after_statistics, after.activation, {});
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const bool normed = context->saved_data.at("normed").toBool(),
               for_input = context->needs_input_grad(0);
    Parameter& weight = kept(context, "convolved");
    const KeptBatchNorm after = kept_call(context, "after");
    std::optional<KeptBatchNorm> before;
    std::optional<GpuStatistics> statistics;
    if (normed) {
      before.emplace(kept_call(context, "before"));
      statistics.emplace(saved[1]);
    }
    const bool further = for_input || weight.trainable || (normed && before->trains());
    DepthwiseInputs in{.x = saved[0],
                       .before = statistics ? &*statistics : nullptr,
                       .before_activation = normed ? before->activation : ImageActivation::none,
                       .y = saved[2],
                       .after = GpuStatistics(saved[3]),
                       .after_activation = after.activation,
                       .slope_offset = {},
                       .dy = dense(grads[0]),
                       .valid = after.valid};
    if (after.needs_sums(further)) {
      const at::Tensor sums = gpu_gradient_sums({.x = in.y,
                                                 .dy = in.dy,
                                                 .y = {},
                                                 .statistics = in.after,
                                                 .activation = after.activation,
                                                 .valid = after.valid});
      in.slope_offset =
          gpu_finish_gradient(sums, in.after, after.weight, after.bias, after.sharing());
    }
    if (!further) return {{}, {}, {}, {}, {}, {}};
    const DepthwiseGradients made = depthwise_gradients_cuda(in, weight, kept_shape(context));
    if (normed) {
      at::Tensor slope_offset;
      if (before->needs_sums(for_input)) {
        slope_offset = gpu_finish_gradient(made.sums, *statistics, before->weight, before->bias,
                                           before->sharing());
      }
      if (for_input)
        gpu_input_gradient_in_place(made.dz, in.x, *statistics, slope_offset, before->valid);
    }
    return {for_input ? made.dz : at::Tensor(), {}, {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor depthwise_norm(const at::Tensor& x_BHWC, const BatchNormCall* before,
                          const ConvShape& shape, Parameter& weight, const BatchNormCall& after) {
  if (!has_kernel(x_BHWC, shape)) {
    return batch_norm(before == nullptr ? conv(x_BHWC, shape, weight)
                                        : batch_norm_conv(x_BHWC, *before, shape, weight),
                      after);
  }
  if (before != nullptr) check_batch_norm(x_BHWC, *before, {});
  check_batch_norm(x_BHWC, after, {});
  check_conv(x_BHWC, shape, weight, nullptr);
  const auto trains = [](const BatchNormCall& call) {
    return call.weight.trainable || call.bias.trainable;
  };
  return DepthwiseNorm::apply(x_BHWC,
                              anchor_for(x_BHWC, (before != nullptr && trains(*before)) ||
                                                     weight.trainable || trains(after)),
                              before, shape, &weight, after);
}

}  // namespace dstrain::ops
