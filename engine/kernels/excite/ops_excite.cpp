#include "engine/kernels/excite/ops_excite.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/hardsigmoid.h>
#include <ATen/ops/hardsigmoid_backward.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sigmoid_backward.h>
#include <fmt/format.h>

#include "engine/base/error.h"
#include "engine/kernels/conv/conv_context.h"
#include "engine/kernels/op_context.h"
#include "engine/kernels/op_support.h"

namespace dstrain::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// [B, 1, 1, C] fp32.
at::Tensor opened(const at::Tensor& z, Gate gate) {
  const at::Tensor wide = z.to(at::kFloat).view({z.size(0), 1, 1, z.size(1)});
  return gate == Gate::sigmoid ? at::sigmoid(wide) : at::hardsigmoid(wide);
}

/// x * open in fp32, rounded once.
at::Tensor excited(const at::Tensor& x, const at::Tensor& open) {
  at::Tensor y = at::empty_like(x);
  return at::mul_out(y, x, open);
}

struct ExcitedConv : torch::autograd::Function<ExcitedConv> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& z,
                            const std::optional<at::Tensor>&, Gate gate, const ConvShape& shape,
                            Parameter* weight) {
    const at::Tensor x = dense(input);
    context->save_for_backward({x, z});
    context->saved_data["gate"] = static_cast<std::int64_t>(gate);
    keep(context, "weight", weight);
    keep_shape(context, shape);
    return convolve(excited(x, opened(z, gate)), value_of(*weight, x), shape);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &z = saved[1], dy = dense(grads[0]);
    const auto gate = static_cast<Gate>(context->saved_data.at("gate").toInt());
    const ConvShape shape = kept_shape(context);
    Parameter& weight = kept(context, "weight");
    const at::Tensor open = opened(z, gate);
    if (weight.trainable) add_conv_weight_gradient(excited(x, open), dy, shape, weight);
    const bool for_x = context->needs_input_grad(0), for_z = context->needs_input_grad(1);
    at::Tensor dx, dz;
    if (!for_x && !for_z) return {dx, dz, {}, {}, {}, {}};
    const at::Tensor d = convolve_input_gradient(dy, value_of(weight, x), shape, x.sizes());
    if (for_x) dx = excited(d, open);
    if (for_z) {
      const at::Tensor sums = d.to(at::kFloat).mul_(x).sum({1, 2}, /*keepdim=*/true);
      dz = gate == Gate::sigmoid ? at::sigmoid_backward(sums, open)
                                 : at::hardsigmoid_backward(sums, z.to(at::kFloat).view_as(sums));
      dz = dz.view(z.sizes()).to(z.scalar_type());
    }
    return {dx, dz, {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor excited_conv(const at::Tensor& x_BHWC, const at::Tensor& z_BC, Gate gate,
                        const ConvShape& shape, Parameter& weight) {
  check_conv(x_BHWC, shape, weight, nullptr);
  DSTRAIN_CHECK(z_BC.dim() == 2 && z_BC.size(0) == x_BHWC.size(0) && z_BC.size(1) == shape.in,
                fmt::format("excited_conv: x {}, z {}", shape_of(x_BHWC), shape_of(z_BC)));
  const bool graph = x_BHWC.requires_grad() || z_BC.requires_grad();
  return ExcitedConv::apply(x_BHWC, z_BC,
                            graph ? std::nullopt : anchor_for(x_BHWC, weight.trainable), gate,
                            shape, &weight);
}

}  // namespace dstrain::ops
