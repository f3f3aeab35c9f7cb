#include "engine/kernels/activation/kernels.h"
#include "engine/kernels/linear/linear_map.h"
#include "engine/kernels/op_context.h"
#include "engine/kernels/op_support.h"
#include "engine/kernels/ops.h"

namespace dstrain::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Linear : torch::autograd::Function<Linear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>&, const Known& known, Parameter* weight,
                            Parameter* bias) {
    LinearOutput out = apply_linear({dense(input), known.maxima}, *weight, bias);
    context->save_for_backward({out.kept, out.scale, out.weight_scale});
    keep(context, "weight", weight);
    keep(context, "bias", bias);
    return out.y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const bool for_input = context->needs_input_grad(0);
    const LinearGradient dy(grads[0], kept(context, "weight"), kept_or_null(context, "bias"),
                            for_input);
    dy.add_to_parameters(saved[0], saved[1]);
    return {for_input ? dy.input(saved[2]) : at::Tensor(), {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor linear(const Measured& x_MK, Parameter& weight, Parameter* bias) {
  check_linear(x_MK.rows, weight, bias);
  const bool any_trainable = weight.trainable || (bias != nullptr && bias->trainable);
  return Linear::apply(x_MK.rows, anchor_for(x_MK.rows, any_trainable),
                       Known{.maxima = x_MK.maxima}, &weight, bias);
}

at::Tensor linear_gelu(const at::Tensor& x_MK, Parameter& weight, Parameter& bias, Gelu kind) {
  check_linear(x_MK, weight, &bias);
  return bias_gelu(linear(x_MK, weight, nullptr), bias, kind);
}

}  // namespace dstrain::ops
