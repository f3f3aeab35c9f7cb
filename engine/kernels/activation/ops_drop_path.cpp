#include "engine/kernels/activation/ops_drop_path.h"

#include <ATen/ops/addcmul.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <fmt/format.h>

#include "engine/base/error.h"
#include "engine/kernels/activation/drop_context.h"
#include "engine/kernels/op_support.h"

namespace dstrain::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// x times the factor of its sample, and the residual, in fp32, rounded once.
at::Tensor scaled_samples(const at::Tensor& x, std::int64_t samples, const DropMask& mask,
                          const at::Tensor& residual) {
  const at::Tensor factors = sample_factors(samples, mask, x).unsqueeze(1);
  at::Tensor y = at::empty_like(x);
  const auto rows = [samples](const at::Tensor& tensor) { return tensor.view({samples, -1}); };
  at::Tensor out = rows(y);
  if (residual.defined()) {
    at::addcmul_out(out, rows(residual), rows(x), factors);
  } else {
    at::mul_out(out, rows(x), factors);
  }
  return y;
}

struct DropPath : torch::autograd::Function<DropPath> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const std::optional<at::Tensor>& residual, std::int64_t samples,
                            const DropMask& mask) {
    keep_mask(context, mask);
    context->saved_data["samples"] = samples;
    context->saved_data["residual"] = residual.has_value();
    return scaled_samples(dense(x), samples, mask, residual ? dense(*residual) : at::Tensor());
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const at::Tensor dy = dense(grads[0]);
    const at::Tensor dx = scaled_samples(dy, context->saved_data.at("samples").toInt(),
                                         kept_mask(context), /*residual=*/{});
    // Only tensors that were given have an edge to ask for.
    const bool wanted = context->saved_data.at("residual").toBool() && context->needs_input_grad(1);
    return {dx, wanted ? dy : at::Tensor(), {}, {}};
  }
};

}  // namespace

at::Tensor drop_path(const at::Tensor& x, std::int64_t samples, const DropMask& mask,
                     const at::Tensor& residual) {
  DSTRAIN_CHECK(samples > 0 && x.size(0) % samples == 0 &&
                    (!residual.defined() || residual.sizes() == x.sizes()),
                fmt::format("drop_path: x {}, {} samples", shape_of(x), samples));
  return DropPath::apply(x, residual.defined() ? std::optional(residual) : std::nullopt, samples,
                         mask);
}

}  // namespace dstrain::ops
