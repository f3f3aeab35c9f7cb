#include "engine/kernels/activation/kernels.h"
#include "engine/kernels/linear/linear_map.h"
#include "engine/kernels/op_context.h"
#include "engine/kernels/op_support.h"
#include "engine/kernels/ops.h"
#include "engine/kernels/tensor/ops_tensor.h"
#include "engine/kernels/tensor/ranked_linear.h"
#include "engine/kernels/tensor/rows_beside.h"

namespace dstrain::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Linear : torch::autograd::Function<Linear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>&, const Known& known, Parameter* weight,
                            Parameter* bias, const RowRanks& ranks) {
    LinearOutput out =
        apply_linear({dense(input), known.maxima}, *weight, bias, Keep::input, ranks);
    context->save_for_backward({out.kept, out.scale, out.weight_scale});
    keep(context, "weight", weight);
    keep(context, "bias", bias);
    keep_address(context, "gathered", ranks.gathered);
    keep_address(context, "summed", ranks.summed);
    return out.y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &scale = saved[1], &weight_scale = saved[2];
    Parameter& weight = kept(context, "weight");
    Parameter* bias = kept_or_null(context, "bias");
    const bool for_input = context->needs_input_grad(0);
    at::Tensor dx;
    if (auto* summed = kept_address_or_null<Communicator>(context, "summed"); summed != nullptr) {
      const RankedGradient dy =
          gradient_of_sum(grads[0], weight, bias, for_input, weight_scale, summed);
      dy.output.add_to_parameters(x, scale);
      dx = dy.input;
    } else {
      dx = add_and_pass_on({grads[0], weight, bias, for_input}, x, scale, weight_scale, for_input,
                           kept_address_or_null<Communicator>(context, "gathered"));
    }
    return {dx, {}, {}, {}, {}, {}};
  }
};

at::Tensor linear(const Measured& x, Parameter& weight, Parameter* bias, const RowRanks& ranks) {
  check_linear(x.rows, weight, bias);
  const bool any_trainable = weight.trainable || (bias != nullptr && bias->trainable);
  return Linear::apply(x.rows, anchor_for(x.rows, any_trainable), Known{.maxima = x.maxima},
                       &weight, bias, ranks);
}

}  // namespace

at::Tensor linear(const Measured& x_MK, Parameter& weight, Parameter* bias) {
  return linear(x_MK, weight, bias, RowRanks{});
}

at::Tensor linear_of_gathered(const Measured& x_mK, Parameter& weight, Parameter* bias,
                              Communicator* ranks) {
  return linear(x_mK, weight, bias, {.gathered = others(ranks)});
}

at::Tensor summed_linear(const Measured& x_MK, Parameter& weight, Communicator* ranks) {
  return linear(x_MK, weight, nullptr, {.summed = others(ranks)});
}

at::Tensor linear_gelu(const at::Tensor& x_MK, Parameter& weight, Parameter& bias, Gelu kind) {
  check_linear(x_MK, weight, &bias);
  return bias_gelu(linear(x_MK, weight, nullptr), bias, kind);
}

}  // namespace dstrain::ops
