#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "engine/base/error.h"
#include "engine/kernels/activation/drop_context.h"
#include "engine/kernels/activation/ops_dropout.h"
#include "engine/kernels/gradient_sink.h"
#include "engine/kernels/linear/gemm.h"
#include "engine/kernels/op_context.h"
#include "engine/kernels/op_support.h"
#include "engine/kernels/ops.h"

namespace dstrain::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// What is added to which columns, and the mask on the way in.
struct LowRank {
  double scale;
  std::int64_t column;
  DropMask mask;
};

void keep_options(AutogradContext* context, const LowRank& how) {
  context->saved_data["scale"] = how.scale;
  context->saved_data["column"] = how.column;
  keep_mask(context, how.mask);
}

LowRank kept_options(AutogradContext* context) {
  const auto& data = context->saved_data;
  return {data.at("scale").toDouble(), data.at("column").toInt(), kept_mask(context)};
}

/// Saves x and u = dropout(x) a^T, which is narrow; the mask is drawn again.
struct AddLowRank : torch::autograd::Function<AddLowRank> {
  static at::Tensor forward(AutogradContext* context, at::Tensor base, const at::Tensor& input,
                            const std::optional<at::Tensor>&, Parameter* a, Parameter* b,
                            const LowRank& how) {
    const at::Tensor x = dense(input), &down = value_of(*a, x), &up = value_of(*b, x);
    at::Tensor u = at::empty({x.size(0), down.size(0)}, x.options());
    multiply(drop(x, how.mask), down.t(), u);
    multiply(u, up.t(), base.narrow(1, how.column, up.size(0)), {.alpha = how.scale, .add = true});
    context->mark_dirty({base});
    context->save_for_backward({a->trainable ? x : at::Tensor(), b->trainable ? u : at::Tensor()});
    keep(context, "a", a);
    keep(context, "b", b);
    keep_options(context, how);
    return base;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const LowRank how = kept_options(context);
    Parameter &a = kept(context, "a"), &b = kept(context, "b");
    const at::Tensor grad = dense(grads[0]);
    const at::Tensor &down = value_of(a, grad), &up = value_of(b, grad);
    const at::Tensor dy = grad.narrow(1, how.column, up.size(0));
    if (b.trainable) GradientSink(b, dy).product(dy.t(), saved[1], {.alpha = how.scale});
    const bool for_input = context->needs_input_grad(1);
    at::Tensor dx;
    if (a.trainable || for_input) {
      at::Tensor du = at::empty({grad.size(0), down.size(0)}, grad.options());
      multiply(dy, up, du, {.alpha = how.scale});
      if (a.trainable) GradientSink(a, du).product(du.t(), drop(saved[0], how.mask));
      if (for_input) {
        dx = at::empty({grad.size(0), down.size(1)}, grad.options());
        multiply(du, down, dx);
        dx = drop(dx, how.mask);
      }
    }
    return {grads[0], dx, {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor add_low_rank(const at::Tensor& base, const at::Tensor& x_MK, Parameter& a, Parameter& b,
                        double scale, std::int64_t column, const DropMask& mask) {
  const at::Tensor &down = value_of(a, x_MK), &up = value_of(b, x_MK);
  DSTRAIN_CHECK(
      base.dim() == 2 && x_MK.dim() == 2 && down.dim() == 2 && up.dim() == 2 &&
          base.size(0) == x_MK.size(0) && base.is_contiguous() &&
          base.scalar_type() == x_MK.scalar_type() && down.size(1) == x_MK.size(1) &&
          up.size(1) == down.size(0) && column >= 0 && column + up.size(0) <= base.size(1) &&
          mask.share >= 0 && mask.share < 1 && (mask.share == 0 || mask.seed.defined()) &&
          (!mask.rows.defined() || is_vector(mask.rows, x_MK.size(0), at::kInt, x_MK)),
      fmt::format("add_low_rank: base {}, x {}, a {}, b {}, column {}, dropout {}", shape_of(base),
                  shape_of(x_MK), shape_of(down), shape_of(up), column, mask.share));
  const bool any_trainable = a.trainable || b.trainable;
  return AddLowRank::apply(base, x_MK, anchor_for(x_MK, any_trainable), &a, &b,
                           LowRank{scale, column, mask});
}

}  // namespace dstrain::ops
