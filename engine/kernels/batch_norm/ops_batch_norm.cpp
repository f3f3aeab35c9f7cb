#include "engine/kernels/batch_norm/ops_batch_norm.h"

#include <ATen/ops/scalar_tensor.h>
#include <fmt/format.h>

#include "engine/base/error.h"
#include "engine/comm/communicator.h"
#include "engine/kernels/batch_norm/batch_norm.h"
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

Normalisation normalisation(const at::Tensor& x, const ChannelStatistics& statistics,
                            const BatchNormCall& call) {
  return {.statistics = statistics,
          .weight = value_of(call.weight, x),
          .bias = value_of(call.bias, x),
          .activation = call.activation};
}

void keep_call(AutogradContext* context, const BatchNormCall& call) {
  keep(context, "weight", &call.weight);
  keep(context, "bias", &call.bias);
  keep_address(context, "ranks", call.ranks);
  context->saved_data["fixed"] = call.fixed;
  context->saved_data["valid"] = call.valid;
  context->saved_data["activation"] = static_cast<std::int64_t>(call.activation);
}

/// The gradient of norm's input and, where wanted, of its residual, from that of its output; adds
/// those of its parameters.
class BatchNormGradient {
 public:
  BatchNormGradient(AutogradContext* context, const at::Tensor& x, const at::Tensor& statistics,
                    const at::Tensor& y)
      : weight_(kept(context, "weight")),
        bias_(kept(context, "bias")),
        ranks_(reinterpret_cast<Communicator*>(
            static_cast<std::intptr_t>(context->saved_data.at("ranks").toInt()))),
        fixed_(context->saved_data.at("fixed").toBool()) {
    of_.x = x;
    of_.y = y;
    of_.how = {
        .statistics = {statistics},
        .weight = value_of(weight_, x),
        .bias = value_of(bias_, x),
        .activation = static_cast<ImageActivation>(context->saved_data.at("activation").toInt())};
    of_.valid = context->saved_data.at("valid").toTensor();
  }

  [[nodiscard]] const Normalisation& how() const { return of_.how; }
  /// dx; undefined unless `for_input`.
  at::Tensor input(const at::Tensor& dy, bool for_input) {
    of_.dy = dy;
    const bool trains = weight_.trainable || bias_.trainable;
    at::Tensor sums;
    if (trains || (for_input && !fixed_)) {
      sums = batch_norm_gradient_sums(of_);
      const std::int64_t channels = of_.how.statistics.channels();
      if (bias_.trainable) gradient_of(bias_, dy).add_(sums.narrow(0, 0, channels));
      if (weight_.trainable) gradient_of(weight_, dy).add_(sums.narrow(0, channels, channels));
    }
    // The ranks meet here even where one of them needs no gradient of x.
    if (!fixed_ && ranks_ != nullptr && sums.defined()) ranks_->all_reduce(sums, ReduceOp::sum);
    if (!for_input) return {};
    return batch_norm_input_gradient(of_, fixed_ ? at::Tensor() : sums);
  }
  [[nodiscard]] at::Tensor residual() const { return batch_norm_residual_gradient(of_); }

 private:
  Parameter& weight_;
  Parameter& bias_;
  Communicator* ranks_;
  bool fixed_;
  NormalisedGradient of_;
};

struct BatchNorm : torch::autograd::Function<BatchNorm> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>& residual,
                            const std::optional<at::Tensor>&, const BatchNormCall& call) {
    const at::Tensor x = dense(input), added = residual ? dense(*residual) : at::Tensor();
    const ChannelStatistics statistics = statistics_for(x, call);
    at::Tensor y = batch_norm_apply(x, normalisation(x, statistics, call), added);
    const bool by_output = residual && call.activation == ImageActivation::relu;
    context->save_for_backward({x, statistics.all, by_output ? y : at::Tensor()});
    keep_call(context, call);
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    BatchNormGradient gradient(context, saved[0], saved[1], saved[2]);
    const at::Tensor dy = dense(grads[0]);
    const at::Tensor dx = gradient.input(dy, context->needs_input_grad(0));
    return {dx, context->needs_input_grad(1) ? gradient.residual() : at::Tensor(), {}, {}};
  }
};

struct BatchNormConv : torch::autograd::Function<BatchNormConv> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>&, const BatchNormCall& call,
                            const ConvShape& shape, Parameter* weight) {
    const at::Tensor x = dense(input);
    const ChannelStatistics statistics = statistics_for(x, call);
    const at::Tensor normed = batch_norm_apply(x, normalisation(x, statistics, call), {});
    context->save_for_backward({x, statistics.all});
    keep_call(context, call);
    keep(context, "convolved", weight);
    keep_shape(context, shape);
    return convolve(normed, value_of(*weight, x), shape);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], dy = dense(grads[0]);
    BatchNormGradient gradient(context, x, saved[1], {});
    Parameter& weight = kept(context, "convolved");
    const ConvShape shape = kept_shape(context);
    if (weight.trainable)
      add_conv_weight_gradient(batch_norm_apply(x, gradient.how(), {}), dy, shape, weight);
    const at::Tensor normed_gradient =
        convolve_input_gradient(dy, value_of(weight, x), shape, x.sizes());
    return {gradient.input(normed_gradient, context->needs_input_grad(0)), {}, {}, {}, {}};
  }
};

bool trains(const BatchNormCall& call) { return call.weight.trainable || call.bias.trainable; }

}  // namespace

at::Tensor batch_norm(const at::Tensor& x_BHWC, const BatchNormCall& call,
                      const at::Tensor& residual) {
  check_batch_norm(x_BHWC, call, residual);
  const bool graph = x_BHWC.requires_grad() || (residual.defined() && residual.requires_grad());
  return BatchNorm::apply(x_BHWC, residual.defined() ? std::optional(residual) : std::nullopt,
                          graph ? std::nullopt : anchor_for(x_BHWC, trains(call)), call);
}

at::Tensor batch_norm_conv(const at::Tensor& x_BHWC, const BatchNormCall& call,
                           const ConvShape& shape, Parameter& weight) {
  check_batch_norm(x_BHWC, call, {});
  check_conv(x_BHWC, shape, weight, nullptr);
  return BatchNormConv::apply(x_BHWC, anchor_for(x_BHWC, trains(call) || weight.trainable), call,
                              shape, &weight);
}

}  // namespace dstrain::ops
