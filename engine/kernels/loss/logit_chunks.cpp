#include "engine/kernels/loss/logit_chunks.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/tanh_backward.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <limits>

#include "engine/kernels/gradient_sink.h"
#include "engine/kernels/linear/gemm.h"
#include "engine/kernels/loss/kernels.h"
#include "engine/kernels/op_support.h"

namespace dstrain::ops {
namespace {

void loss_rows_cpu(const at::Tensor& logits, const RowTargets& targets, const at::Tensor& grad_loss,
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
void loss_rows(const at::Tensor& logits, const RowTargets& targets, const at::Tensor& grad_loss,
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

/// dx [M, D] = grad [M, classes] table [classes, D]. Classes beyond a fast_part() are added in
/// fp32.
void input_gradient(const at::Tensor& grad, const at::Tensor& table, const at::Tensor& dx) {
  const std::int64_t classes = grad.size(1);
  const std::int64_t fast = grad.is_cuda() ? fast_part(classes, grad.element_size()) : classes;
  if (fast == classes) return multiply(grad, table, dx);
  const at::Tensor sum = scratch(dx, dx.sizes());
  const auto part = [&](std::int64_t first, std::int64_t count, bool add) {
    multiply(grad.narrow(1, first, count), table.narrow(0, first, count), sum, {.add = add});
  };
  part(0, fast, false);
  part(fast, classes - fast, true);
  dx.copy_(sum);
}

}  // namespace

const LogitLimit& limit_of(LogitRows at_once) {
  return at_once == LogitRows::many ? kManyLogits : kFewLogits;
}

RowLosses for_each_chunk(const at::Tensor& x, const Parameter& table, const RowTargets& targets,
                         const at::Tensor& grad_loss, const LogitLimit& at_once,
                         const EachChunk& each) {
  const at::Tensor& value = value_of(table, x);
  const std::int64_t rows = x.size(0), classes = value.size(0);
  const std::int64_t stride = padded_classes(classes);
  const std::int64_t max = chunk_rows(rows, stride * static_cast<std::int64_t>(x.element_size()),
                                      x.is_cuda() ? at_once : kLogitsOnCpu);
  const at::Tensor buffer = at::empty({max, stride}, x.options());
  RowLosses losses{.loss = scratch(x, {rows}), .top1 = scratch(x, {rows})};
  for (std::int64_t first = 0; first < rows; first += max) {
    const std::int64_t count = std::min(max, rows - first);
    const at::Tensor part = x.narrow(0, first, count);
    const at::Tensor logits = buffer.narrow(0, 0, count).narrow(1, 0, classes);
    multiply(part, value.t(), logits);
    at::Tensor bent;  // tanh, by which the gradient goes back
    if (targets.softcap > 0) {
      logits.div_(targets.softcap).tanh_();
      if (grad_loss.defined()) bent = logits.clone();
      logits.mul_(targets.softcap);
    }
    loss_rows(logits, targets.rows(first, count), grad_loss, losses.loss.narrow(0, first, count),
              losses.top1.narrow(0, first, count));
    at::Tensor in_place = logits;
    if (bent.defined()) at::tanh_backward_out(in_place, logits, bent);
    if (each) each(first, part, logits);
  }
  return losses;
}

RowLosses for_each_chunk_backward(const at::Tensor& x, Parameter& table, const RowTargets& targets,
                                  const at::Tensor& grad_loss, const LogitLimit& at_once,
                                  const at::Tensor& dx) {
  return for_each_chunk(x, table, targets, grad_loss, at_once,
                        [&](std::int64_t first, const at::Tensor& part, const at::Tensor& grad) {
                          if (dx.defined())
                            input_gradient(grad, value_of(table, x),
                                           dx.narrow(0, first, part.size(0)));
                          GradientSink(table, part).product(grad.t(), part);
                        });
}

}  // namespace dstrain::ops
