#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "engine/base/error.h"
#include "engine/kernels/gradient_sink.h"
#include "engine/kernels/linear/gemm.h"
#include "engine/kernels/loss/chunk_rows.h"
#include "engine/kernels/loss/kernels.h"
#include "engine/kernels/op_context.h"
#include "engine/kernels/op_support.h"
#include "engine/kernels/ops.h"

namespace dstrain::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// What the loss of rows is computed from, and where its sums go.
struct Targets {
  at::Tensor labels;   ///< [M] int64
  at::Tensor weights;  ///< [M] fp32
  at::Tensor totals;   ///< [4] fp32

  [[nodiscard]] Targets rows(std::int64_t first, std::int64_t count) const {
    return {labels.narrow(0, first, count), weights.narrow(0, first, count), totals};
  }
};

void loss_rows_cpu(const at::Tensor& logits, const Targets& targets, const at::Tensor& grad_loss,
                   const at::Tensor& loss, const at::Tensor& top1) {
  const at::Tensor z = logits.to(at::kFloat), log_sum_exp = at::logsumexp(z, 1);
  const at::Tensor& labels = targets.labels;
  const at::Tensor known = labels.ge(0).logical_and(labels.lt(z.size(1)));
  const at::Tensor index = at::where(known, labels, at::zeros_like(labels)).unsqueeze(1);
  const at::Tensor own = z.gather(1, index).masked_fill(known.logical_not().unsqueeze(1),
                                                        std::numeric_limits<float>::quiet_NaN());
  const at::Tensor lower = at::arange(z.size(1), index.options()).unsqueeze(0).lt(index);
  const at::Tensor beaten = z.gt(own).logical_or(z.eq(own).logical_and(lower)).any(1);
  // Not a product with 0: a filler's logits may be anything.
  const at::Tensor filler = targets.weights.eq(0);
  const at::Tensor losses = log_sum_exp - own.squeeze(1);
  loss.copy_((losses * targets.weights).masked_fill(filler, 0));
  // Beside a nan no class scores higher: only a row with a finite loss counts.
  top1.copy_(targets.weights.masked_fill(beaten.logical_or(at::isfinite(losses).logical_not()), 0));
  if (!grad_loss.defined()) return;
  at::Tensor grad = (z - log_sum_exp.unsqueeze(1)).exp();
  grad.scatter_add_(1, index, known.to(at::kFloat).neg().unsqueeze(1));
  grad.mul_((targets.weights * grad_loss).unsqueeze(1)).masked_fill_(filler.unsqueeze(1), 0);
  logits.copy_(grad);
}

/// Losses of the rows; with `grad_loss`, logits become their gradients.
void loss_rows(const at::Tensor& logits, const Targets& targets, const at::Tensor& grad_loss,
               const at::Tensor& loss, const at::Tensor& top1) {
  if (!logits.is_cuda()) return loss_rows_cpu(logits, targets, grad_loss, loss, top1);
  kernels::cuda::vocab_loss(
      {.logits = logits.mutable_data_ptr(),
       .labels = targets.labels.const_data_ptr<std::int64_t>(),
       .weights = targets.weights.const_data_ptr<float>(),
       .grad_loss = grad_loss.defined() ? grad_loss.const_data_ptr<float>() : nullptr,
       .loss = loss.mutable_data_ptr<float>(),
       .top1 = top1.mutable_data_ptr<float>(),
       .rows = logits.size(0),
       .classes = logits.size(1),
       .stride = logits.stride(0),
       .dtype = kernel_dtype(logits)},
      current_stream());
}

const LogitLimit& limit_of(LogitRows at_once) {
  return at_once == LogitRows::many ? kManyLogits : kFewLogits;
}

/// Adds the rows' sums to the totals; the sum of the losses.
at::Tensor add_totals(const Targets& targets, const at::Tensor& loss, const at::Tensor& top1) {
  if (!loss.is_cuda()) {
    const at::Tensor sum = loss.sum();
    targets.totals[0].add_(sum);
    targets.totals[1].add_(top1.sum());
    targets.totals[3].add_(targets.weights.sum());
    return sum;
  }
  at::Tensor sum = scratch(loss, {});
  kernels::cuda::vocab_totals({.loss = loss.const_data_ptr<float>(),
                               .top1 = top1.const_data_ptr<float>(),
                               .weights = targets.weights.const_data_ptr<float>(),
                               .loss_sum = sum.mutable_data_ptr<float>(),
                               .totals = targets.totals.mutable_data_ptr<float>(),
                               .rows = loss.size(0)},
                              current_stream());
  return sum;
}

/// Goes through the rows in chunks whose logits, limited by `at_once` on a GPU, share one buffer;
/// `each(first, x, logits)` comes after the losses of a chunk. Returns the sum of the losses.
template <typename Each>
at::Tensor for_each_chunk(const at::Tensor& x, const Parameter& table, const Targets& targets,
                          const at::Tensor& grad_loss, const LogitLimit& at_once,
                          const Each& each) {
  const at::Tensor& value = value_of(table, x);
  const std::int64_t rows = x.size(0), classes = value.size(0);
  const std::int64_t stride = padded_classes(classes);
  const std::int64_t most = chunk_rows(rows, stride * static_cast<std::int64_t>(x.element_size()),
                                       x.is_cuda() ? at_once : kLogitsOnCpu);
  const at::Tensor buffer = at::empty({most, stride}, x.options());
  const at::Tensor loss = scratch(x, {rows}), top1 = scratch(x, {rows});
  for (std::int64_t first = 0; first < rows; first += most) {
    const std::int64_t count = std::min(most, rows - first);
    const at::Tensor part = x.narrow(0, first, count);
    const at::Tensor logits = buffer.narrow(0, 0, count).narrow(1, 0, classes);
    multiply(part, value.t(), logits);
    loss_rows(logits, targets.rows(first, count), grad_loss, loss.narrow(0, first, count),
              top1.narrow(0, first, count));
    each(first, part, logits);
  }
  return add_totals(targets, loss, top1);
}

/// Forward only marks where backward starts: loss and gradients come from the same logits.
struct LinearCrossEntropy : torch::autograd::Function<LinearCrossEntropy> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>&, Parameter* table,
                            const Targets& targets, LogitRows at_once) {
    context->save_for_backward({dense(input), targets.labels, targets.weights});
    context->saved_data["totals"] = targets.totals;  // changed in between by other micro-batches
    context->saved_data["many"] = at_once == LogitRows::many;
    keep(context, "table", table);
    return at::zeros({}, input.options().dtype(at::kFloat));
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const Targets targets{saved[1], saved[2], context->saved_data.at("totals").toTensor()};
    Parameter& table = kept(context, "table");
    const at::Tensor dx = context->needs_input_grad(0) ? at::empty_like(x) : at::Tensor();
    const LogitLimit& at_once =
        limit_of(context->saved_data.at("many").toBool() ? LogitRows::many : LogitRows::few);
    (void)for_each_chunk(x, table, targets, dense(grads[0]), at_once,
                         [&](std::int64_t first, const at::Tensor& part, const at::Tensor& grad) {
                           if (dx.defined())
                             multiply(grad, value_of(table, x), dx.narrow(0, first, part.size(0)));
                           GradientSink(table, part).product(grad.t(), part);
                         });
    return {dx, {}, {}, {}, {}};
  }
};

}  // namespace

std::int64_t linear_cross_entropy_bytes(std::int64_t rows, std::int64_t classes, int element_bytes,
                                        LogitRows at_once) {
  const std::int64_t row_bytes = padded_classes(classes) * element_bytes;
  return chunk_rows(rows, row_bytes, limit_of(at_once)) * row_bytes;
}

at::Tensor linear_cross_entropy(const at::Tensor& x_MD, Parameter& table, const at::Tensor& labels,
                                const at::Tensor& weights, const at::Tensor& totals,
                                LogitRows at_once) {
  const at::Tensor& value = value_of(table, x_MD);
  DSTRAIN_CHECK(
      x_MD.dim() == 2 && value.dim() == 2 && value.size(1) == x_MD.size(1) && value.size(0) > 0 &&
          is_vector(labels, x_MD.size(0), at::kLong, x_MD) &&
          is_vector(weights, x_MD.size(0), at::kFloat, x_MD) &&
          is_vector(totals, 4, at::kFloat, x_MD),
      fmt::format(
          "linear_cross_entropy: x {}, table {}, labels {} int64, weights {} fp32, totals {} fp32",
          shape_of(x_MD), shape_of(value), shape_of(labels), shape_of(weights), shape_of(totals)));
  const Targets targets{labels, weights, totals};
  if (c10::GradMode::is_enabled() && (x_MD.requires_grad() || table.trainable))
    return LinearCrossEntropy::apply(x_MD, anchor_for(x_MD, table.trainable), &table, targets,
                                     at_once);
  return for_each_chunk(dense(x_MD), table, targets, {}, kEvaluatedLogits,
                        [](std::int64_t, const at::Tensor&, const at::Tensor&) {});
}

}  // namespace dstrain::ops
