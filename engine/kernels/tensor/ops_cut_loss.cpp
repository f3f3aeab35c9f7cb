#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/kernels/gradient_sink.h"
#include "engine/kernels/linear/gemm.h"
#include "engine/kernels/loss/chunk_rows.h"
#include "engine/kernels/loss/kernels.h"
#include "engine/kernels/op_context.h"
#include "engine/kernels/op_support.h"
#include "engine/kernels/tensor/ops_tensor.h"
#include "engine/kernels/tensor/rows_beside.h"

/// Cross entropy over classes that several ranks share. Each tells the others of each row what its
/// classes add to it, [largest logit, sum of exponentials, the label's logit, class of the
/// largest], and from that of all ranks each has the row's loss and the gradient of its own logits.
namespace dstrain::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Labels and weights of all rows, and where their sums go.
struct CutTargets {
  at::Tensor labels;   ///< [M] int64
  at::Tensor weights;  ///< [M] fp32
  at::Tensor totals;   ///< [4] fp32
};

/// The rows [first, first + count) of each rank, one rank after the other, of [M].
at::Tensor rows_of_all(const at::Tensor& all, int ranks, std::int64_t first, std::int64_t count) {
  return all.view({ranks, -1}).narrow(1, first, count).reshape({-1});
}

void describe_part(const kernels::VocabPart& args, const at::Tensor& logits) {
  if (logits.is_cuda()) return kernels::cuda::vocab_part(args, current_stream());
  kernels::reference::vocab_part(args);
}

void finish_part(const kernels::VocabPartLoss& args, const at::Tensor& logits) {
  if (logits.is_cuda()) return kernels::cuda::vocab_part_loss(args, current_stream());
  kernels::reference::vocab_part_loss(args);
}

/// Losses of a chunk's rows; with `grad_loss`, logits become their gradients.
void cut_loss_rows(const at::Tensor& logits, const Parameter& table, const CutTargets& chunk,
                   const at::Tensor& grad_loss, const at::Tensor& loss, const at::Tensor& top1,
                   Communicator& ranks) {
  const std::int64_t rows = logits.size(0);
  const at::Tensor own = scratch(logits, {rows, kCutLossColumns});
  at::Tensor all = scratch(logits, {ranks.size() * rows, kCutLossColumns});
  const Piece& part = table.parts.front();
  describe_part({.logits = logits.const_data_ptr(),
                 .labels = chunk.labels.const_data_ptr<std::int64_t>(),
                 .found = own.mutable_data_ptr<float>(),
                 .rows = rows,
                 .classes = logits.size(1),
                 .stride = logits.stride(0),
                 .first_class = part.rows.begin,
                 .dtype = kernel_dtype(logits)},
                logits);
  ranks.all_gather(all, own);
  finish_part({.logits = logits.mutable_data_ptr(),
               .labels = chunk.labels.const_data_ptr<std::int64_t>(),
               .weights = chunk.weights.const_data_ptr<float>(),
               .grad_loss = grad_loss.defined() ? grad_loss.const_data_ptr<float>() : nullptr,
               .found = all.const_data_ptr<float>(),
               .loss = loss.mutable_data_ptr<float>(),
               .top1 = top1.mutable_data_ptr<float>(),
               .rows = rows,
               .classes = logits.size(1),
               .stride = logits.stride(0),
               .first_class = part.rows.begin,
               .all_classes = part.shape.front(),
               .parts = ranks.size(),
               .dtype = kernel_dtype(logits)},
              logits);
}

/// Goes through the rows in chunks; `each(first, x, logits)` comes after the losses of a chunk, of
/// `x` gathered from this rank's rows at `first`. The first rank adds to the totals.
template <typename Each>
at::Tensor for_each_cut_chunk(const at::Tensor& x, const Parameter& table,
                              const CutTargets& targets, const at::Tensor& grad_loss,
                              Communicator& ranks, const Each& each) {
  const at::Tensor& value = value_of(table, x);
  const std::int64_t classes = value.size(0), stride = padded_classes(classes), n = ranks.size();
  const std::vector<std::int64_t> chunks = cut_cross_entropy_chunks(
      x.size(0), ranks.size(), classes, static_cast<int>(x.element_size()));
  const std::int64_t max = n * *std::ranges::max_element(chunks);
  const at::Tensor buffer = at::empty({max, stride}, x.options());
  at::Tensor gathered = at::empty({max, x.size(1)}, x.options());
  at::Tensor sum = at::zeros({}, x.options().dtype(at::kFloat));
  std::int64_t first = 0;
  for (const std::int64_t own : chunks) {
    const std::int64_t rows = n * own;
    at::Tensor part = gathered.narrow(0, 0, rows);
    const at::Tensor logits = buffer.narrow(0, 0, rows).narrow(1, 0, classes);
    gather_beside(part, x.narrow(0, first, own), ranks,
                  [&](const at::Tensor& some, std::int64_t place) {
                    multiply(some, value.t(), logits.narrow(0, place, some.size(0)));
                  });
    const CutTargets chunk{rows_of_all(targets.labels, ranks.size(), first, own),
                           rows_of_all(targets.weights, ranks.size(), first, own),
                           {}};
    const at::Tensor loss = scratch(x, {rows}), top1 = scratch(x, {rows});
    cut_loss_rows(logits, table, chunk, grad_loss, loss, top1, ranks);
    sum.add_(loss.sum());
    if (ranks.rank() == 0) {
      targets.totals[1].add_(top1.sum());
      targets.totals[3].add_(chunk.weights.sum());
    }
    each(first, part, logits);
    first += own;
  }
  if (ranks.rank() != 0) return at::zeros_like(sum);
  targets.totals[0].add_(sum);
  return sum;
}

/// Forward only marks where backward starts: loss and gradients come from the same logits.
struct CutCrossEntropy : torch::autograd::Function<CutCrossEntropy> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>&, Parameter* table,
                            const CutTargets& targets, Communicator* ranks) {
    context->save_for_backward({dense(input), targets.labels, targets.weights});
    context->saved_data["totals"] = targets.totals;  // changed in between by other micro-batches
    keep(context, "table", table);
    keep_ranks(context, ranks);
    return at::zeros({}, input.options().dtype(at::kFloat));
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const CutTargets targets{saved[1], saved[2], context->saved_data.at("totals").toTensor()};
    Parameter& table = kept(context, "table");
    Communicator& ranks = kept_ranks(context);
    const at::Tensor dx = context->needs_input_grad(0) ? at::empty_like(x) : at::Tensor();
    (void)for_each_cut_chunk(
        x, table, targets, dense(grads[0]), ranks,
        [&](std::int64_t first, const at::Tensor& part, const at::Tensor& grad) {
          const auto to_table = [&] { GradientSink(table, part).product(grad.t(), part); };
          if (!dx.defined()) return to_table();
          const at::Tensor partial = at::empty_like(part);
          multiply(grad, value_of(table, x), partial);
          at::Tensor own = dx.narrow(0, first, part.size(0) / ranks.size());
          ranks.reduce_scatter(own, partial, to_table);
        });
    return {dx, {}, {}, {}, {}};
  }
};

}  // namespace

std::vector<std::int64_t> cut_cross_entropy_chunks(std::int64_t rows, int ranks,
                                                   std::int64_t classes, int element_bytes) {
  const std::int64_t max =
      chunk_rows(rows, ranks * padded_classes(classes) * element_bytes, kFewLogits);
  // All ranks' rows of a chunk together are no more than those of one rank alone.
  const std::int64_t own = std::max<std::int64_t>(1, std::min(max, kFewLogits.rows / ranks));
  std::vector<std::int64_t> chunks;
  for (std::int64_t first = 0; first < rows; first += own)
    chunks.push_back(std::min(own, rows - first));
  return chunks;
}

at::Tensor cut_cross_entropy(const at::Tensor& x_mD, Parameter& table, const at::Tensor& labels,
                             const at::Tensor& weights, const at::Tensor& totals,
                             Communicator& ranks) {
  const at::Tensor& value = value_of(table, x_mD);
  const std::int64_t rows = x_mD.size(0) * ranks.size();
  DSTRAIN_CHECK(x_mD.dim() == 2 && value.dim() == 2 && value.size(1) == x_mD.size(1) &&
                    table.parts.size() == 1 && is_vector(labels, rows, at::kLong, x_mD) &&
                    is_vector(weights, rows, at::kFloat, x_mD) &&
                    is_vector(totals, 4, at::kFloat, x_mD),
                fmt::format("cut_cross_entropy: x {} of {} ranks, table {}, labels {} int64, "
                            "weights {} fp32, totals {} fp32",
                            shape_of(x_mD), ranks.size(), shape_of(value), shape_of(labels),
                            shape_of(weights), shape_of(totals)));
  const CutTargets targets{labels, weights, totals};
  if (c10::GradMode::is_enabled() && (x_mD.requires_grad() || table.trainable))
    return CutCrossEntropy::apply(x_mD, anchor_for(x_mD, table.trainable), &table, targets, &ranks);
  return for_each_cut_chunk(dense(x_mD), table, targets, {}, ranks,
                            [](std::int64_t, const at::Tensor&, const at::Tensor&) {});
}

at::Tensor most_likely_class(const at::Tensor& logits, Communicator& ranks) {
  const std::int64_t rows = logits.size(0), classes = logits.size(1), n = ranks.size();
  const auto [value, index] = logits.to(at::kFloat).max(1);
  at::Tensor values = scratch(logits, {n, rows});
  ranks.all_gather(values, value.contiguous());
  at::Tensor indices = at::empty({n, rows}, index.options());
  ranks.all_gather(indices, (index + ranks.rank() * classes).contiguous());
  // The first rank's of equal ones, which has the lower classes.
  at::Tensor best = values[0], chosen = indices[0];
  for (std::int64_t r = 1; r < n; ++r) {
    const at::Tensor above = values[r].gt(best);
    best = best.where(above.logical_not(), values[r]);
    chosen = chosen.where(above.logical_not(), indices[r]);
  }
  return chosen;
}

}  // namespace dstrain::ops
