#include "engine/kernels/batch_norm/normed.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/scalar_tensor.h>

#include "engine/comm/communicator.h"
#include "engine/kernels/batch_norm/batch_norm.h"
#include "engine/kernels/batch_norm/batch_norm_gpu.h"
#include "engine/kernels/gradient_sink.h"
#include "engine/kernels/op_support.h"

namespace dstrain::ops {
namespace {

/// Statistics of the batch, which are counted where `call` says so, or fixed ones.
ChannelStatistics statistics_for(const at::Tensor& x, const BatchNormCall& call) {
  if (call.fixed) return fixed_statistics(call.running_mean, call.running_variance, call.eps);
  at::Tensor sums = batch_norm_sums(x, call.running_mean, call.valid);
  const at::Tensor samples =
      call.valid.defined() ? call.valid : at::scalar_tensor(x.size(0), call.running_mean.options());
  if (call.ranks != nullptr) call.ranks->all_reduce(sums, ReduceOp::sum);
  if (call.mean_sum.defined())
    add_step_statistics(sums, call.running_mean, samples, call.mean_sum, call.variance_sum);
  return statistics_of_sums(sums, call.running_mean, call.eps);
}

Normed normed_cpu(const at::Tensor& x, const BatchNormCall& call, const at::Tensor& residual) {
  const ChannelStatistics statistics = statistics_for(x, call);
  const Normalisation how{.statistics = statistics,
                          .weight = value_of(call.weight, x),
                          .bias = value_of(call.bias, x),
                          .activation = call.activation};
  return {batch_norm_apply(x, how, residual), statistics.all};
}

Normed normed_cuda(const at::Tensor& x, const BatchNormCall& call, const at::Tensor& residual) {
  const GpuStatistics statistics = gpu_statistics(x, call);
  return {
      gpu_batch_norm_apply(
          x, statistics, {.activation = call.activation, .residual = residual, .drop = call.drop}),
      statistics.all()};
}

NormGradients gradients_cpu(const KeptBatchNorm& norm, const NormInputs& in,
                            WantedNormGradients wanted) {
  const NormalisedGradient of{.x = in.x,
                              .dy = in.dy,
                              .y = in.y,
                              .how = {.statistics = {in.statistics},
                                      .weight = value_of(norm.weight, in.x),
                                      .bias = value_of(norm.bias, in.x),
                                      .activation = norm.activation},
                              .valid = norm.valid};
  NormGradients made;
  at::Tensor sums;
  if (norm.needs_sums(wanted.input)) {
    sums = batch_norm_gradient_sums(of);
    const std::int64_t channels = of.how.statistics.channels();
    GradientSink(norm.bias, in.dy).add(sums.narrow(0, 0, channels));
    GradientSink(norm.weight, in.dy).add(sums.narrow(0, channels, channels));
    // The ranks meet here even where one of them needs no gradient of x.
    if (norm.sharing() != nullptr) norm.sharing()->all_reduce(sums, ReduceOp::sum);
  }
  if (wanted.input) made.dx = batch_norm_input_gradient(of, norm.fixed ? at::Tensor() : sums);
  if (wanted.residual) made.dresidual = batch_norm_residual_gradient(of);
  return made;
}

NormGradients gradients_cuda(const KeptBatchNorm& norm, const NormInputs& in,
                             WantedNormGradients wanted) {
  GpuGradient of{.x = in.x,
                 .dy = in.dy,
                 .y = in.y,
                 .statistics = GpuStatistics(in.statistics),
                 .activation = norm.activation,
                 .valid = norm.valid,
                 .drop = in.drop};
  at::Tensor slope_offset, dz;
  if (norm.needs_sums(wanted.input)) {
    // The residual's gradient is written where it is made first, and is then read instead of the
    // output and its gradient.
    if (wanted.residual && in.y.defined()) dz = at::empty_like(in.x);
    slope_offset = gpu_finish_gradient(gpu_gradient_sums(of, dz), of.statistics, norm.weight,
                                       norm.bias, norm.sharing());
  }
  if (dz.defined()) {
    of.dy = dz;
    of.y = at::Tensor();
    of.activation = ImageActivation::none;
    return {wanted.input ? gpu_input_gradient(of, slope_offset, false).dx : at::Tensor(), dz};
  }
  if (!wanted.input && !wanted.residual) return {};
  const GpuInputGradient made = gpu_input_gradient(of, slope_offset, wanted.residual);
  return {made.dx, made.dz};
}

}  // namespace

Normed normed(const at::Tensor& x, const BatchNormCall& call, const at::Tensor& residual) {
  return x.is_cuda() ? normed_cuda(x, call, residual) : normed_cpu(x, call, residual);
}

NormedPair normed_pair(const at::Tensor& x, const BatchNormCall& call, const at::Tensor& other,
                       const BatchNormCall& other_call) {
  if (!x.is_cuda()) {
    const Normed beside = normed_cpu(other, other_call, {}), made = normed_cpu(x, call, beside.y);
    return {made.y, made.statistics, beside.statistics};
  }
  const GpuStatistics beside = gpu_statistics(other, other_call),
                      statistics = gpu_statistics(x, call);
  return {gpu_batch_norm_apply(
              x, statistics,
              {.activation = call.activation, .residual = other, .residual_statistics = &beside}),
          statistics.all(), beside.all()};
}

at::Tensor normed_again(const KeptBatchNorm& norm, const at::Tensor& x,
                        const at::Tensor& statistics) {
  if (x.is_cuda())
    return gpu_batch_norm_apply(x, GpuStatistics(statistics), {.activation = norm.activation});
  return batch_norm_apply(x,
                          {.statistics = {statistics},
                           .weight = value_of(norm.weight, x),
                           .bias = value_of(norm.bias, x),
                           .activation = norm.activation},
                          {});
}

NormGradients norm_gradients(const KeptBatchNorm& norm, const NormInputs& in,
                             WantedNormGradients wanted) {
  return in.x.is_cuda() ? gradients_cuda(norm, in, wanted) : gradients_cpu(norm, in, wanted);
}

}  // namespace dstrain::ops
