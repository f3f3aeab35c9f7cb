#include "engine/kernels/batch_norm/batch_norm_gpu.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/rsqrt.h>

#include <utility>

#include "engine/comm/communicator.h"
#include "engine/kernels/gradient_sink.h"
#include "engine/kernels/op_support.h"

namespace dstrain::ops {
namespace {

struct ImageSize {
  std::int64_t samples, pixels, channels;
  [[nodiscard]] std::int64_t partials() const {
    return kernels::batch_norm_partials(samples, pixels, channels);
  }
};
ImageSize size_of(const at::Tensor& image) {
  return {image.size(0), image.size(1) * image.size(2), image.size(3)};
}

const void* data_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr() : nullptr;
}

kernels::DropSamples drop_samples(const DropMask& mask) {
  if (mask.share == 0) return {};
  return {.seed = mask.seed.const_data_ptr<std::int64_t>(),
          .place = mask.place,
          .share = static_cast<float>(mask.share)};
}

GpuSums image_sums(const at::Tensor& x, const at::Tensor& valid) {
  const ImageSize size = size_of(x);
  GpuSums sums{.partial = scratch(x, {size.partials(), 2, size.channels}),
               .centre = scratch(x, {size.channels})};
  kernels::cuda::batch_norm_sums({.x = x.const_data_ptr(),
                                  .centre = sums.centre.mutable_data_ptr<float>(),
                                  .centre_pixel = x.size(1) / 2 * x.size(2) + x.size(2) / 2,
                                  .valid = valid_pointer(valid),
                                  .partial = sums.partial.mutable_data_ptr<float>(),
                                  .samples = size.samples,
                                  .pixels = size.pixels,
                                  .channels = size.channels,
                                  .dtype = kernel_dtype(x)},
                                 current_stream());
  return sums;
}

/// [2 C + 1] fp64: sums of x - running mean over the images of all ranks, and N.
at::Tensor shared_sums(const GpuSums& own, const ImageSize& size, const BatchNormCall& call) {
  at::Tensor sums = at::empty({2 * size.channels + 1}, own.partial.options().dtype(at::kDouble));
  kernels::cuda::batch_norm_move_sums({.partial = own.partial.const_data_ptr<float>(),
                                       .centre = own.centre.const_data_ptr<float>(),
                                       .origin = call.running_mean.const_data_ptr<float>(),
                                       .valid = valid_pointer(call.valid),
                                       .sums = sums.mutable_data_ptr<double>(),
                                       .partials = own.partial.size(0),
                                       .samples = size.samples,
                                       .pixels = size.pixels,
                                       .channels = size.channels},
                                      current_stream());
  call.ranks->all_reduce(sums, ReduceOp::sum);
  return sums;
}

GpuStatistics fixed_gpu_statistics(const at::Tensor& x, const BatchNormCall& call) {
  const std::int64_t channels = x.size(3);
  const GpuStatistics made(scratch(x, {4 * channels + 1}));
  made.all().narrow(0, 0, channels).copy_(call.running_mean);
  made.all().narrow(0, channels, channels).copy_(at::rsqrt(call.running_variance + call.eps));
  made.all().narrow(0, 4 * channels, 1).zero_();
  kernels::cuda::batch_norm_fold({.mean = made.mean(),
                                  .rstd = made.rstd(),
                                  .weight = value_of(call.weight, x).const_data_ptr(),
                                  .bias = value_of(call.bias, x).const_data_ptr(),
                                  .scale = made.scale(),
                                  .shift = made.shift(),
                                  .channels = channels,
                                  .dtype = kernel_dtype(x)},
                                 current_stream());
  return made;
}

}  // namespace

const std::int32_t* valid_pointer(const at::Tensor& valid) {
  return valid.defined() ? valid.const_data_ptr<std::int32_t>() : nullptr;
}

kernels::Activation kernel_activation(ImageActivation activation) {
  using enum ImageActivation;
  switch (activation) {
    case none:
      return kernels::Activation::none;
    case relu:
      return kernels::Activation::relu;
    case relu6:
      return kernels::Activation::relu6;
    case silu:
      return kernels::Activation::silu;
    case hardswish:
      return kernels::Activation::hardswish;
  }
  return kernels::Activation::none;
}

GpuStatistics gpu_statistics(const at::Tensor& x, const BatchNormCall& call, GpuSums sums) {
  if (call.fixed) return fixed_gpu_statistics(x, call);
  const ImageSize size = size_of(x);
  const GpuStatistics made(scratch(x, {4 * size.channels + 1}));
  if (!sums.partial.defined()) sums = image_sums(x, call.valid);
  const bool alone = call.ranks == nullptr;
  const at::Tensor shared = alone ? at::Tensor() : shared_sums(sums, size, call);
  const at::Tensor& centre = alone ? sums.centre : call.running_mean;
  kernels::cuda::batch_norm_finish({.partial = sums.partial.const_data_ptr<float>(),
                                    .shared = alone ? nullptr : shared.const_data_ptr<double>(),
                                    .centre = centre.const_data_ptr<float>(),
                                    .weight = value_of(call.weight, x).const_data_ptr(),
                                    .bias = value_of(call.bias, x).const_data_ptr(),
                                    .valid = valid_pointer(call.valid),
                                    .mean = made.mean(),
                                    .rstd = made.rstd(),
                                    .count = made.count(),
                                    .scale = made.scale(),
                                    .shift = made.shift(),
                                    .mean_sum = fp32_or_null(call.mean_sum),
                                    .variance_sum = fp32_or_null(call.variance_sum),
                                    .partials = sums.partial.size(0),
                                    .samples = size.samples,
                                    .pixels = size.pixels,
                                    .channels = size.channels,
                                    .eps = static_cast<float>(call.eps),
                                    .dtype = kernel_dtype(x)},
                                   current_stream());
  return made;
}

at::Tensor gpu_batch_norm_apply(const at::Tensor& x, const GpuStatistics& statistics,
                                const GpuApply& how) {
  const ImageSize size = size_of(x);
  at::Tensor y = at::empty_like(x);
  const GpuStatistics* other = how.residual_statistics;
  kernels::cuda::batch_norm_apply({.x = x.const_data_ptr(),
                                   .scale = statistics.scale(),
                                   .shift = statistics.shift(),
                                   .residual = data_or_null(how.residual),
                                   .gate = fp32_or_null(how.gate),
                                   .y = y.mutable_data_ptr(),
                                   .samples = size.samples,
                                   .pixels = size.pixels,
                                   .channels = size.channels,
                                   .activation = kernel_activation(how.activation),
                                   .dtype = kernel_dtype(x),
                                   .drop = drop_samples(how.drop),
                                   .residual_scale = other == nullptr ? nullptr : other->scale(),
                                   .residual_shift = other == nullptr ? nullptr : other->shift()},
                                  current_stream());
  return y;
}

at::Tensor gpu_gradient_sums(const GpuGradient& of, const at::Tensor& dz) {
  const ImageSize size = size_of(of.x);
  at::Tensor partial = scratch(of.x, {size.partials(), 2, size.channels});
  kernels::cuda::batch_norm_backward_sums(
      {.x = of.x.const_data_ptr(),
       .y = data_or_null(of.y),
       .grad_y = of.dy.const_data_ptr(),
       .mean = of.statistics.mean(),
       .scale = of.statistics.scale(),
       .shift = of.statistics.shift(),
       .valid = valid_pointer(of.valid),
       .partial = partial.mutable_data_ptr<float>(),
       .samples = size.samples,
       .pixels = size.pixels,
       .channels = size.channels,
       .activation = kernel_activation(of.activation),
       .dtype = kernel_dtype(of.x),
       .drop = drop_samples(of.drop),
       .grad_residual = dz.defined() ? dz.mutable_data_ptr() : nullptr},
      current_stream());
  return partial;
}

at::Tensor gpu_finish_gradient(const at::Tensor& partial, const GpuStatistics& statistics,
                               Parameter& weight, Parameter& bias, Communicator* ranks) {
  const std::int64_t channels = statistics.channels();
  at::Tensor slope_offset = scratch(partial, {2, channels}), all;
  if (ranks != nullptr) {
    all = scratch(partial, {2, channels});
    kernels::cuda::batch_norm_add_sums({.partial = partial.const_data_ptr<float>(),
                                        .rstd = statistics.rstd(),
                                        .sums = all.mutable_data_ptr<float>(),
                                        .partials = partial.size(0),
                                        .channels = channels},
                                       current_stream());
    ranks->all_reduce(all, ReduceOp::sum);
  }
  const at::Tensor like = value_of(weight, weight.value);
  kernels::cuda::batch_norm_backward_finish(
      {.partial = partial.const_data_ptr<float>(),
       .all_sums = all.defined() ? all.const_data_ptr<float>() : nullptr,
       .rstd = statistics.rstd(),
       .scale = statistics.scale(),
       .count = statistics.count(),
       .slope = slope_offset.mutable_data_ptr<float>(),
       .offset = slope_offset.mutable_data_ptr<float>() + channels,
       .grad_weight = GradientSink(weight, like).vector(),
       .grad_bias = GradientSink(bias, like).vector(),
       .partials = partial.size(0),
       .channels = channels},
      current_stream());
  return slope_offset;
}

namespace {

void input_gradient(const GpuGradient& of, const at::Tensor& slope_offset, const at::Tensor& dx,
                    const at::Tensor& dz) {
  const ImageSize size = size_of(of.x);
  kernels::cuda::batch_norm_backward_apply(
      {.x = of.x.const_data_ptr(),
       .y = data_or_null(of.y),
       .grad_y = of.dy.const_data_ptr(),
       .mean = of.statistics.mean(),
       .scale = of.statistics.scale(),
       .shift = of.statistics.shift(),
       .slope = fp32_or_null(slope_offset),
       .offset = slope_offset.defined() ? slope_offset.mutable_data_ptr<float>() + size.channels
                                        : nullptr,
       .valid = valid_pointer(of.valid),
       .grad_x = dx.mutable_data_ptr(),
       .grad_residual = dz.defined() ? dz.mutable_data_ptr() : nullptr,
       .samples = size.samples,
       .pixels = size.pixels,
       .channels = size.channels,
       .activation = kernel_activation(of.activation),
       .dtype = kernel_dtype(of.x),
       .drop = drop_samples(of.drop)},
      current_stream());
}

}  // namespace

GpuInputGradient gpu_input_gradient(const GpuGradient& of, const at::Tensor& slope_offset,
                                    bool residual) {
  GpuInputGradient made{.dx = at::empty_like(of.x), .dz = {}};
  if (residual) made.dz = at::empty_like(of.x);
  input_gradient(of, slope_offset, made.dx, made.dz);
  return made;
}

void gpu_input_gradient_in_place(const at::Tensor& dz, const at::Tensor& x,
                                 const GpuStatistics& statistics, const at::Tensor& slope_offset,
                                 const at::Tensor& valid) {
  input_gradient({.x = x,
                  .dy = dz,
                  .y = {},
                  .statistics = statistics,
                  .activation = ImageActivation::none,
                  .valid = valid},
                 slope_offset, dz, {});
}

}  // namespace dstrain::ops
