#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <limits>

#include "engine/base/error.h"
#include "engine/kernels/loss/kernels.h"
#include "engine/kernels/op_context.h"
#include "engine/kernels/op_support.h"
#include "engine/kernels/ops.h"

namespace dstrain::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Scored {
  at::Tensor loss, log_sum_exp;
};

/// Labels inside [0, classes), others 0, and where they were inside.
std::pair<at::Tensor, at::Tensor> known_labels(const at::Tensor& labels, std::int64_t classes) {
  const at::Tensor known = labels.ge(0).logical_and(labels.lt(classes));
  return {at::where(known, labels, at::zeros_like(labels)).unsqueeze(1), known.unsqueeze(1)};
}

/// Labels [B, 1] as known_labels() has them, and the logits of these, nan of an unknown one.
std::pair<at::Tensor, at::Tensor> logits_of(const at::Tensor& z, const at::Tensor& labels) {
  const auto [index, known] = known_labels(labels, z.size(1));
  return {index, z.gather(1, index).masked_fill(known.logical_not(),
                                                std::numeric_limits<float>::quiet_NaN())};
}

Scored loss_forward_cpu(const at::Tensor& logits, const at::Tensor& labels,
                        const at::Tensor& weights, double smoothing, const at::Tensor& totals,
                        const SecondLabels& second) {
  const at::Tensor z = logits.to(at::kFloat), log_sum_exp = at::logsumexp(z, 1);
  const auto [index, own] = logits_of(z, labels);
  at::Tensor target = own.squeeze(1);
  if (second.labels.defined()) {
    const at::Tensor other = logits_of(z, second.labels).second.squeeze(1);
    target = target * second.shares + other * (1 - second.shares);
  }
  at::Tensor loss = (log_sum_exp - target) * (1 - smoothing);
  if (smoothing > 0) loss = loss + (log_sum_exp - z.mean(1)) * smoothing;
  const at::Tensor lower = at::arange(z.size(1), index.options()).unsqueeze(0).lt(index);
  const at::Tensor better = z.gt(own).logical_or(z.eq(own).logical_and(lower)).sum(1);
  const auto total = [&](const at::Tensor& value) {
    return at::where(weights.ne(0), value * weights, at::zeros_like(weights)).sum();
  };
  // Beside a nan no class scores higher: only a row with a finite loss counts.
  const at::Tensor sum = total(loss), counts = at::isfinite(loss);
  totals.add_(at::stack({sum, total(better.lt(1).logical_and(counts)),
                         total(better.lt(5).logical_and(counts)), weights.sum()}));
  return {sum, log_sum_exp};
}

at::Tensor loss_backward_cpu(const at::Tensor& grad_loss, const at::Tensor& logits,
                             const at::Tensor& labels, const at::Tensor& weights,
                             const at::Tensor& log_sum_exp, double smoothing,
                             const SecondLabels& second) {
  at::Tensor grad = (logits.to(at::kFloat) - log_sum_exp.unsqueeze(1)).exp();
  const auto [index, known] = known_labels(labels, logits.size(1));
  grad.sub_(smoothing / static_cast<double>(logits.size(1)));
  at::Tensor share = known.to(at::kFloat) * (smoothing - 1);
  if (second.labels.defined()) {
    const auto [other, other_known] = known_labels(second.labels, logits.size(1));
    const at::Tensor rest = (1 - second.shares).unsqueeze(1);
    grad.scatter_add_(1, other, other_known.to(at::kFloat) * (smoothing - 1) * rest);
    share = share * second.shares.unsqueeze(1);
  }
  grad.scatter_add_(1, index, share);
  grad.mul_((weights * grad_loss).unsqueeze(1));
  // Not a product with 0: a filler's logits may be anything.
  return grad.masked_fill_(weights.eq(0).unsqueeze(1), 0).to(logits.scalar_type());
}

const std::int64_t* second_labels(const SecondLabels& second) {
  return second.labels.defined() ? second.labels.const_data_ptr<std::int64_t>() : nullptr;
}
const float* shares(const SecondLabels& second) {
  return second.labels.defined() ? second.shares.const_data_ptr<float>() : nullptr;
}

Scored loss_forward_cuda(const at::Tensor& logits, const at::Tensor& labels,
                         const at::Tensor& weights, double smoothing, const at::Tensor& totals,
                         const SecondLabels& second) {
  const Scored out{scratch(logits, {}), scratch(logits, {logits.size(0)})};
  const at::Tensor rows = scratch(logits, {4, logits.size(0)});
  kernels::cuda::cross_entropy({.logits = logits.const_data_ptr(),
                                .labels = labels.const_data_ptr<std::int64_t>(),
                                .weights = weights.const_data_ptr<float>(),
                                .log_sum_exp = out.log_sum_exp.mutable_data_ptr<float>(),
                                .rows = rows.mutable_data_ptr<float>(),
                                .loss = out.loss.mutable_data_ptr<float>(),
                                .totals = totals.mutable_data_ptr<float>(),
                                .batch = logits.size(0),
                                .classes = logits.size(1),
                                .smoothing = static_cast<float>(smoothing),
                                .dtype = kernel_dtype(logits),
                                .second_labels = second_labels(second),
                                .shares = shares(second)},
                               current_stream());
  return out;
}

at::Tensor loss_backward_cuda(const at::Tensor& grad_loss, const at::Tensor& logits,
                              const at::Tensor& labels, const at::Tensor& weights,
                              const at::Tensor& log_sum_exp, double smoothing,
                              const SecondLabels& second) {
  at::Tensor grad = at::empty_like(logits);
  kernels::cuda::cross_entropy_backward({.logits = logits.const_data_ptr(),
                                         .labels = labels.const_data_ptr<std::int64_t>(),
                                         .weights = weights.const_data_ptr<float>(),
                                         .log_sum_exp = log_sum_exp.const_data_ptr<float>(),
                                         .grad_loss = grad_loss.const_data_ptr<float>(),
                                         .grad_logits = grad.mutable_data_ptr(),
                                         .batch = logits.size(0),
                                         .classes = logits.size(1),
                                         .smoothing = static_cast<float>(smoothing),
                                         .dtype = kernel_dtype(logits),
                                         .second_labels = second_labels(second),
                                         .shares = shares(second)},
                                        current_stream());
  return grad;
}

/// Saves the logits and one number a row; the gradient is made when its factor is known, so that
/// fp16 does not lose it.
struct CrossEntropy : torch::autograd::Function<CrossEntropy> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& labels, const at::Tensor& weights, double smoothing,
                            const at::Tensor& totals, const SecondLabels* second) {
    const at::Tensor logits = dense(input);
    const auto forward_on = logits.is_cuda() ? loss_forward_cuda : loss_forward_cpu;
    const Scored out = forward_on(logits, labels, weights, smoothing, totals, *second);
    variable_list saved = {logits, labels, weights, out.log_sum_exp};
    if (second->labels.defined()) saved.insert(saved.end(), {second->labels, second->shares});
    context->save_for_backward(saved);
    context->saved_data["smoothing"] = smoothing;
    return out.loss;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const auto backward_on = saved[0].is_cuda() ? loss_backward_cuda : loss_backward_cpu;
    const SecondLabels second =
        saved.size() > 4 ? SecondLabels{saved[4], saved[5]} : SecondLabels{};
    return {backward_on(dense(grads[0]), saved[0], saved[1], saved[2], saved[3],
                        context->saved_data.at("smoothing").toDouble(), second),
            {},
            {},
            {},
            {},
            {}};
  }
};

}  // namespace

at::Tensor softmax_cross_entropy(const at::Tensor& logits, const at::Tensor& labels,
                                 const at::Tensor& weights, double label_smoothing,
                                 const at::Tensor& totals, const SecondLabels& second) {
  DSTRAIN_CHECK(
      logits.dim() == 2 && logits.size(1) > 0 &&
          is_vector(labels, logits.size(0), at::kLong, logits) &&
          is_vector(weights, logits.size(0), at::kFloat, logits) &&
          is_vector(totals, 4, at::kFloat, logits),
      fmt::format(
          "softmax_cross_entropy: logits {}, labels {} int64, weights {} fp32, totals {} fp32",
          shape_of(logits), shape_of(labels), shape_of(weights), shape_of(totals)));
  DSTRAIN_CHECK(
      !second.labels.defined() || (is_vector(second.labels, logits.size(0), at::kLong, logits) &&
                                   is_vector(second.shares, logits.size(0), at::kFloat, logits)),
      "softmax_cross_entropy: second labels [B] int64, shares [B] fp32");
  return CrossEntropy::apply(logits, labels, weights, label_smoothing, totals, &second);
}

}  // namespace dstrain::ops
