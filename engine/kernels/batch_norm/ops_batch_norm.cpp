#include "engine/kernels/batch_norm/ops_batch_norm.h"

#include <ATen/ops/scalar_tensor.h>
#include <fmt/format.h>

#include "engine/base/error.h"
#include "engine/comm/communicator.h"
#include "engine/kernels/batch_norm/batch_norm.h"
#include "engine/kernels/batch_norm/batch_norm_context.h"
#include "engine/kernels/batch_norm/batch_norm_gpu.h"
#include "engine/kernels/conv/conv_context.h"
#include "engine/kernels/op_context.h"
#include "engine/kernels/op_support.h"

namespace dstrain::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

bool is_statistic(const at::Tensor& tensor, const at::Tensor& x) {
  return is_vector(tensor, x.size(3), at::kFloat, x);
}

/// An output, and the statistics that backward needs: ChannelStatistics of a CPU, GpuStatistics of
/// a GPU.
struct Normed {
  at::Tensor y, statistics;
};

/// Of the batch, which are counted where `call` says so, or fixed ones.
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
  return {gpu_batch_norm_apply(x, statistics, call.activation, residual), statistics.all()};
}

Normed normed(const at::Tensor& x, const BatchNormCall& call, const at::Tensor& residual) {
  return x.is_cuda() ? normed_cuda(x, call, residual) : normed_cpu(x, call, residual);
}

/// Which of a norm's gradients are wanted.
struct Wanted {
  bool input, residual;
};
/// What backward has: x and the statistics, the output of a ReLU beside a residual, the output's
/// gradient.
struct NormInputs {
  at::Tensor x, statistics, y, dy;
};
struct NormGradients {
  at::Tensor dx, dresidual;
};

NormGradients gradients_cpu(const KeptBatchNorm& norm, const NormInputs& in, Wanted wanted) {
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
    if (norm.bias.trainable) gradient_of(norm.bias, in.dy).add_(sums.narrow(0, 0, channels));
    if (norm.weight.trainable)
      gradient_of(norm.weight, in.dy).add_(sums.narrow(0, channels, channels));
    // The ranks meet here even where one of them needs no gradient of x.
    if (norm.sharing() != nullptr) norm.sharing()->all_reduce(sums, ReduceOp::sum);
  }
  if (wanted.input) made.dx = batch_norm_input_gradient(of, norm.fixed ? at::Tensor() : sums);
  if (wanted.residual) made.dresidual = batch_norm_residual_gradient(of);
  return made;
}

NormGradients gradients_cuda(const KeptBatchNorm& norm, const NormInputs& in, Wanted wanted) {
  const GpuGradient of{.x = in.x,
                       .dy = in.dy,
                       .y = in.y,
                       .statistics = GpuStatistics(in.statistics),
                       .activation = norm.activation,
                       .valid = norm.valid};
  at::Tensor slope_offset;
  if (norm.needs_sums(wanted.input)) {
    slope_offset = gpu_finish_gradient(gpu_gradient_sums(of), of.statistics, norm.weight, norm.bias,
                                       norm.sharing());
  }
  if (!wanted.input && !wanted.residual) return {};
  const GpuInputGradient made = gpu_input_gradient(of, slope_offset, wanted.residual);
  return {made.dx, made.dz};
}

/// Adds the gradients of the norm's parameters, too.
NormGradients gradients(const KeptBatchNorm& norm, const NormInputs& in, Wanted wanted) {
  return in.x.is_cuda() ? gradients_cuda(norm, in, wanted) : gradients_cpu(norm, in, wanted);
}

/// What was normalised in forward.
at::Tensor normed_again(const KeptBatchNorm& norm, const at::Tensor& x,
                        const at::Tensor& statistics) {
  if (x.is_cuda()) return gpu_batch_norm_apply(x, GpuStatistics(statistics), norm.activation, {});
  return batch_norm_apply(x,
                          {.statistics = {statistics},
                           .weight = value_of(norm.weight, x),
                           .bias = value_of(norm.bias, x),
                           .activation = norm.activation},
                          {});
}

struct BatchNorm : torch::autograd::Function<BatchNorm> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>& residual,
                            const std::optional<at::Tensor>&, const BatchNormCall& call,
                            const ResidualGradient& left) {
    const at::Tensor x = dense(input), added = residual ? dense(*residual) : at::Tensor();
    const Normed out = normed(x, call, added);
    const bool by_output = residual && call.activation == ImageActivation::relu;
    context->save_for_backward({x, out.statistics, by_output ? out.y : at::Tensor()});
    context->saved_data["residual"] = residual.has_value();
    context->saved_data["left"] = left.keep();
    keep_call(context, call);
    return out.y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const bool residual = context->saved_data.at("residual").toBool();
    NormGradients made =
        gradients(kept_call(context),
                  {.x = saved[0], .statistics = saved[1], .y = saved[2], .dy = dense(grads[0])},
                  {.input = context->needs_input_grad(0),
                   .residual = residual && context->needs_input_grad(1)});
    ResidualGradient left(context->saved_data.at("left"));
    if (left.used() && made.dresidual.defined()) {
      left.leave(made.dresidual);
      made.dresidual = at::Tensor();
    }
    return {made.dx, made.dresidual, {}, {}, {}};
  }
};

struct BatchNormConv : torch::autograd::Function<BatchNormConv> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>&, const BatchNormCall& call,
                            const ConvShape& shape, Parameter* weight) {
    const at::Tensor x = dense(input);
    const Normed out = normed(x, call, {});
    context->save_for_backward({x, out.statistics});
    keep_call(context, call);
    keep(context, "convolved", weight);
    keep_shape(context, shape);
    return convolve(out.y, value_of(*weight, x), shape);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], dy = dense(grads[0]);
    const KeptBatchNorm norm = kept_call(context);
    Parameter& weight = kept(context, "convolved");
    const ConvShape shape = kept_shape(context);
    if (weight.trainable)
      add_conv_weight_gradient(normed_again(norm, x, saved[1]), dy, shape, weight);
    const at::Tensor normed_gradient =
        convolve_input_gradient(dy, value_of(weight, x), shape, x.sizes());
    const NormGradients made =
        gradients(norm, {.x = x, .statistics = saved[1], .y = {}, .dy = normed_gradient},
                  {.input = context->needs_input_grad(0), .residual = false});
    return {made.dx, {}, {}, {}, {}};
  }
};

bool trains(const BatchNormCall& call) { return call.weight.trainable || call.bias.trainable; }

}  // namespace

void check_batch_norm(const at::Tensor& x, const BatchNormCall& call, const at::Tensor& residual) {
  const bool fits = x.dim() == 4 && value_of(call.weight, x).numel() == x.size(3) &&
                    value_of(call.bias, x).numel() == x.size(3) &&
                    is_statistic(call.running_mean, x) && is_statistic(call.running_variance, x) &&
                    (!residual.defined() || residual.sizes() == x.sizes());
  DSTRAIN_CHECK(
      fits, fmt::format("batch norm: x {}, weight {}", shape_of(x), shape_of(call.weight.value)));
  DSTRAIN_CHECK(!residual.defined() || call.activation == ImageActivation::none ||
                    call.activation == ImageActivation::relu,
                "batch norm: beside a residual only ReLU");
}

at::Tensor batch_norm(const at::Tensor& x_BHWC, const BatchNormCall& call,
                      const at::Tensor& residual, const ResidualGradient& left) {
  check_batch_norm(x_BHWC, call, residual);
  const bool graph = x_BHWC.requires_grad() || (residual.defined() && residual.requires_grad());
  return BatchNorm::apply(x_BHWC, residual.defined() ? std::optional(residual) : std::nullopt,
                          graph ? std::nullopt : anchor_for(x_BHWC, trains(call)), call, left);
}

at::Tensor batch_norm_conv(const at::Tensor& x_BHWC, const BatchNormCall& call,
                           const ConvShape& shape, Parameter& weight) {
  check_batch_norm(x_BHWC, call, {});
  check_conv(x_BHWC, shape, weight, nullptr);
  return BatchNormConv::apply(x_BHWC, anchor_for(x_BHWC, trains(call) || weight.trainable), call,
                              shape, &weight);
}

}  // namespace dstrain::ops
