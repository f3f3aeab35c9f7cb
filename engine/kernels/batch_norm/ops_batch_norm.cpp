#include "engine/kernels/batch_norm/ops_batch_norm.h"

#include <fmt/format.h>

#include "engine/base/error.h"
#include "engine/kernels/activation/drop_context.h"
#include "engine/kernels/activation/ops_drop_path.h"
#include "engine/kernels/batch_norm/batch_norm_context.h"
#include "engine/kernels/batch_norm/kernels.h"
#include "engine/kernels/batch_norm/normed.h"
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
    if (call.drop.share > 0) keep_mask(context, call.drop);
    return out.y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const bool residual = context->saved_data.at("residual").toBool();
    const bool drops = context->saved_data.count("dropout") > 0;
    NormGradients made = norm_gradients(kept_call(context),
                                        {.x = saved[0],
                                         .statistics = saved[1],
                                         .y = saved[2],
                                         .dy = dense(grads[0]),
                                         .drop = drops ? kept_mask(context) : DropMask()},
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

struct BatchNormPair : torch::autograd::Function<BatchNormPair> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& beside, const std::optional<at::Tensor>&,
                            const BatchNormCall& call, const BatchNormCall& other_call) {
    const at::Tensor x = dense(input), other = dense(beside);
    const NormedPair out = normed_pair(x, call, other, other_call);
    const bool by_output = call.activation == ImageActivation::relu;
    context->save_for_backward(
        {x, out.statistics, other, out.other_statistics, by_output ? out.y : at::Tensor()});
    keep_call(context, call);
    keep_call(context, other_call, "other");
    return out.y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    // The gradient of the sum goes to both norms.
    const NormGradients made = norm_gradients(
        kept_call(context),
        {.x = saved[0], .statistics = saved[1], .y = saved[4], .dy = dense(grads[0])},
        {.input = context->needs_input_grad(0), .residual = true});
    const NormGradients beside =
        norm_gradients(kept_call(context, "other"),
                       {.x = saved[2], .statistics = saved[3], .y = {}, .dy = made.dresidual},
                       {.input = context->needs_input_grad(1), .residual = false});
    return {made.dx, beside.dx, {}, {}, {}};
  }
};

struct BatchNormConv : torch::autograd::Function<BatchNormConv> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>&, const BatchNormCall& call,
                            const ConvShape& shape, Parameter* weight) {
    const at::Tensor x = dense(input);
    const Normed out = normed(x, call);
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
        norm_gradients(norm, {.x = x, .statistics = saved[1], .y = {}, .dy = normed_gradient},
                       {.input = context->needs_input_grad(0), .residual = false});
    return {made.dx, {}, {}, {}, {}};
  }
};

/// The factors of all samples lie in shared memory.
bool drops_in_one_pass(const at::Tensor& x) {
  return x.is_cuda() && x.size(0) <= kernels::kDropSamples;
}

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
  DSTRAIN_CHECK(
      call.drop.share == 0 || (residual.defined() && call.activation == ImageActivation::none),
      "batch norm: samples are left out beside a residual without activation only");
}

at::Tensor batch_norm(const at::Tensor& x_BHWC, const BatchNormCall& call,
                      const at::Tensor& residual, const ResidualGradient& left) {
  check_batch_norm(x_BHWC, call, residual);
  if (call.drop.share > 0 && !drops_in_one_pass(x_BHWC)) {
    BatchNormCall whole = call;
    whole.drop = {};
    return drop_path(batch_norm(x_BHWC, whole), x_BHWC.size(0), call.drop, residual);
  }
  const bool graph = x_BHWC.requires_grad() || (residual.defined() && residual.requires_grad());
  return BatchNorm::apply(x_BHWC, residual.defined() ? std::optional(residual) : std::nullopt,
                          graph ? std::nullopt : anchor_for(x_BHWC, call.trains()), call, left);
}

at::Tensor batch_norm_pair(const at::Tensor& x_BHWC, const BatchNormCall& call,
                           const at::Tensor& other_BHWC, const BatchNormCall& other_call) {
  check_batch_norm(x_BHWC, call, other_BHWC);
  check_batch_norm(other_BHWC, other_call, {});
  DSTRAIN_CHECK(other_call.activation == ImageActivation::none && call.drop.share == 0 &&
                    other_call.drop.share == 0,
                "two batch norms: one activation behind both, and no sample left out");
  const bool graph = x_BHWC.requires_grad() || other_BHWC.requires_grad();
  return BatchNormPair::apply(
      x_BHWC, other_BHWC,
      graph ? std::nullopt : anchor_for(x_BHWC, call.trains() || other_call.trains()), call,
      other_call);
}

at::Tensor batch_norm_conv(const at::Tensor& x_BHWC, const BatchNormCall& call,
                           const ConvShape& shape, Parameter& weight) {
  check_batch_norm(x_BHWC, call, {});
  check_conv(x_BHWC, shape, weight, nullptr);
  return BatchNormConv::apply(x_BHWC, anchor_for(x_BHWC, call.trains() || weight.trainable), call,
                              shape, &weight);
}

}  // namespace dstrain::ops
