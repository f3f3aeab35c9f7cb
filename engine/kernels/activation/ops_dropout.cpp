#include "engine/kernels/activation/ops_dropout.h"

#include <ATen/ops/empty_like.h>

#include "engine/kernels/activation/drop_context.h"
#include "engine/kernels/activation/kernels.h"
#include "engine/kernels/op_support.h"

namespace dstrain::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Dropout : torch::autograd::Function<Dropout> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const DropMask& mask) {
    keep_mask(context, mask);
    return drop(dense(x), mask);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    return {drop(dense(grads[0]), kept_mask(context)), {}};
  }
};

}  // namespace

at::Tensor drop(const at::Tensor& x, const DropMask& mask) {
  if (mask.share == 0) return x;
  at::Tensor y = at::empty_like(x);
  const kernels::Dropout args{
      .x = x.const_data_ptr(),
      .y = y.mutable_data_ptr(),
      .count = x.numel(),
      .seed = mask.seed.const_data_ptr<std::int64_t>(),
      .place = mask.place,
      .share = static_cast<float>(mask.share),
      .dtype = kernel_dtype(x),
      .rows = mask.rows.defined() ? mask.rows.const_data_ptr<std::int32_t>() : nullptr,
      .columns = x.size(-1),
      .whole_columns = mask.whole_columns,
      .first_column = mask.first_column};
  if (x.is_cuda()) {
    kernels::cuda::dropout(args, current_stream());
  } else {
    kernels::reference::dropout(args);
  }
  return y;
}

at::Tensor dropout(const at::Tensor& x, const DropMask& mask) {
  return mask.share == 0 ? x : Dropout::apply(x, mask);
}

}  // namespace dstrain::ops
