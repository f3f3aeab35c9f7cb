#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "engine/kernels/loss/chunk_rows.h"
#include "engine/kernels/ops.h"

/// What losses of rows over a vocabulary share, whose logits are never whole; not for other layers.
namespace dstrain::ops {

/// Each row's label and weight; a row of weight 0 only fills up.
struct RowTargets {
  at::Tensor labels;   ///< [M] int64
  at::Tensor weights;  ///< [M] fp32
  double softcap = 0;  ///< c: logits are c tanh(logit / c); 0: as they are

  [[nodiscard]] RowTargets rows(std::int64_t first, std::int64_t count) const {
    return {labels.narrow(0, first, count), weights.narrow(0, first, count), softcap};
  }
};

struct RowLosses {
  at::Tensor loss;  ///< [M] fp32, -log softmax(x table^T)[label] times the weight
  at::Tensor top1;  ///< [M] fp32, the weight where no class scores higher
};

[[nodiscard]] const LogitLimit& limit_of(LogitRows at_once);

/// Comes after the losses of a chunk: its first row, its part of x, its logits.
using EachChunk =
    std::function<void(std::int64_t first, const at::Tensor& x, const at::Tensor& logits)>;
/// Goes through the rows of x [M, D] in chunks whose logits, limited by `at_once` on a GPU, share
/// one buffer. With `grad_loss` ([] fp32) a chunk's logits become the gradients of grad_loss times
/// the sum of its losses.
RowLosses for_each_chunk(const at::Tensor& x, const Parameter& table, const RowTargets& targets,
                         const at::Tensor& grad_loss, const LogitLimit& at_once,
                         const EachChunk& each);

/// The same with the gradients of x, unless `dx` is undefined, and of the table, to which they are
/// added.
RowLosses for_each_chunk_backward(const at::Tensor& x, Parameter& table, const RowTargets& targets,
                                  const at::Tensor& grad_loss, const LogitLimit& at_once,
                                  const at::Tensor& dx);

}  // namespace dstrain::ops
