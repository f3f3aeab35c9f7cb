#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include "engine/base/error.h"
#include "engine/kernels/linear/gemm.h"
#include "engine/kernels/loss/kernels.h"
#include "engine/kernels/loss/logit_chunks.h"
#include "engine/kernels/op_context.h"
#include "engine/kernels/op_support.h"
#include "engine/kernels/ops.h"

namespace dstrain::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// What the loss of rows is computed from, and where its sums go.
struct Targets {
  RowTargets rows;
  at::Tensor totals;  ///< [4] fp32
};

/// Adds the rows' sums to the totals; the sum of the losses.
at::Tensor add_totals(const Targets& targets, const RowLosses& losses) {
  const auto& [loss, top1] = losses;
  if (!loss.is_cuda()) {
    const at::Tensor sum = loss.sum();
    targets.totals[0].add_(sum);
    targets.totals[1].add_(top1.sum());
    targets.totals[3].add_(targets.rows.weights.sum());
    return sum;
  }
  at::Tensor sum = scratch(loss, {});
  kernels::cuda::vocab_totals({.loss = loss.const_data_ptr<float>(),
                               .top1 = top1.const_data_ptr<float>(),
                               .weights = targets.rows.weights.const_data_ptr<float>(),
                               .loss_sum = sum.mutable_data_ptr<float>(),
                               .totals = targets.totals.mutable_data_ptr<float>(),
                               .rows = loss.size(0)},
                              current_stream());
  return sum;
}

/// Forward only marks where backward starts: loss and gradients come from the same logits.
struct LinearCrossEntropy : torch::autograd::Function<LinearCrossEntropy> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>&, Parameter* table,
                            const Targets& targets, LogitRows at_once) {
    context->save_for_backward({dense(input), targets.rows.labels, targets.rows.weights});
    context->saved_data["totals"] = targets.totals;  // changed in between by other micro-batches
    context->saved_data["many"] = at_once == LogitRows::many;
    context->saved_data["softcap"] = targets.rows.softcap;
    keep(context, "table", table);
    return at::zeros({}, input.options().dtype(at::kFloat));
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const Targets targets{
        .rows = {saved[1], saved[2], context->saved_data.at("softcap").toDouble()},
        .totals = context->saved_data.at("totals").toTensor()};
    const at::Tensor dx = context->needs_input_grad(0) ? at::empty_like(x) : at::Tensor();
    const LogitLimit& at_once =
        limit_of(context->saved_data.at("many").toBool() ? LogitRows::many : LogitRows::few);
    (void)add_totals(targets, for_each_chunk_backward(x, kept(context, "table"), targets.rows,
                                                      dense(grads[0]), at_once, dx));
    return {dx, {}, {}, {}, {}};
  }
};

}  // namespace

std::int64_t linear_cross_entropy_bytes(std::int64_t rows, std::int64_t width, std::int64_t classes,
                                        int element_bytes, LogitRows at_once, bool capped) {
  constexpr std::int64_t kFloatBytes = 4;
  const std::int64_t row_bytes = padded_classes(classes) * element_bytes;
  // Gradients of x in fp32, to which the last classes are added.
  const std::int64_t sums = fast_part(classes, element_bytes) < classes ? kFloatBytes * width : 0;
  return chunk_rows(rows, row_bytes, limit_of(at_once)) * ((capped ? 2 : 1) * row_bytes + sums);
}

at::Tensor linear_cross_entropy(const at::Tensor& x_MD, Parameter& table, const at::Tensor& labels,
                                const at::Tensor& weights, const at::Tensor& totals,
                                LogitRows at_once, double softcap) {
  const at::Tensor& value = value_of(table, x_MD);
  DSTRAIN_CHECK(
      x_MD.dim() == 2 && value.dim() == 2 && value.size(1) == x_MD.size(1) && value.size(0) > 0 &&
          is_vector(labels, x_MD.size(0), at::kLong, x_MD) &&
          is_vector(weights, x_MD.size(0), at::kFloat, x_MD) &&
          is_vector(totals, 4, at::kFloat, x_MD),
      fmt::format(
          "linear_cross_entropy: x {}, table {}, labels {} int64, weights {} fp32, totals {} fp32",
          shape_of(x_MD), shape_of(value), shape_of(labels), shape_of(weights), shape_of(totals)));
  const Targets targets{.rows = {labels, weights, softcap}, .totals = totals};
  if (c10::GradMode::is_enabled() && (x_MD.requires_grad() || table.trainable))
    return LinearCrossEntropy::apply(x_MD, anchor_for(x_MD, table.trainable), &table, targets,
                                     at_once);
  return add_totals(targets,
                    for_each_chunk(dense(x_MD), table, targets.rows, {}, kEvaluatedLogits, {}));
}

}  // namespace dstrain::ops
