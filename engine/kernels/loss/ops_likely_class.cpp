#include "engine/kernels/loss/ops_likely_class.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/logsumexp.h>

#include "engine/base/error.h"
#include "engine/kernels/gpu.h"
#include "engine/kernels/loss/kernels.h"
#include "engine/kernels/op_support.h"

namespace dstrain::ops {

void likely_class(const at::Tensor& logits, const at::Tensor& classes,
                  const at::Tensor& logarithms) {
  DSTRAIN_CHECK(logits.dim() == 2 && logits.size(1) > 0 &&
                    is_vector(classes, logits.size(0), at::kLong, logits) &&
                    is_vector(logarithms, logits.size(0), at::kFloat, logits),
                "likely_class: logits " + shape_of(logits));
  if (!logits.is_cuda()) {
    const at::Tensor scores = logits.to(at::kFloat);
    const at::Tensor best = at::argmax(scores, 1, /*keepdim=*/true);
    classes.copy_(best.squeeze(1));
    logarithms.copy_(
        (scores.gather(1, best) - at::logsumexp(scores, {1}, /*keepdim=*/true)).squeeze(1));
    return;
  }
  const at::Tensor rows = dense(logits);
  const int parts = kernels::likely_class_parts(rows.size(0), rows.size(1));
  at::Tensor partial;
  if (parts > 1) partial = scratch(rows, {rows.size(0), parts, kernels::kLikelyClassColumns});
  kernels::cuda::likely_class({.logits = rows.const_data_ptr(),
                               .best = classes.mutable_data_ptr<std::int64_t>(),
                               .logarithm = logarithms.mutable_data_ptr<float>(),
                               .scratch = fp32_or_null(partial),
                               .rows = rows.size(0),
                               .classes = rows.size(1),
                               .parts = parts,
                               .dtype = kernel_dtype(rows)},
                              current_stream());
}

}  // namespace dstrain::ops
