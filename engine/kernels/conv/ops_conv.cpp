#include "engine/kernels/conv/ops_conv.h"

#include "engine/base/error.h"
#include "engine/kernels/conv/bias_relu.h"
#include "engine/kernels/conv/columns.h"
#include "engine/kernels/conv/conv_context.h"
#include "engine/kernels/op_context.h"
#include "engine/kernels/op_support.h"

namespace dstrain::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// conv(x) with its bias and ReLU.
at::Tensor convolve_activated(const at::Tensor& x, const at::Tensor& weight, const ConvShape& shape,
                              const at::Tensor& bias, bool relu) {
  if (x.is_cuda() && by_direct_kernel(shape, x.element_size()))
    return convolve_directly(x, weight, shape, bias, relu);
  const at::Tensor y = convolve(x, weight, shape);
  add_bias_relu(y, bias, relu);
  return y;
}

struct ConvOptions {
  ConvShape shape;
  ImageActivation activation;
  const ResidualGradient& left;
  const ResidualGradient& leaves;
};

struct Conv : torch::autograd::Function<Conv> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const std::optional<at::Tensor>&, Parameter* weight, Parameter* bias,
                            const ConvOptions& options) {
    const bool activated = options.activation == ImageActivation::relu;
    const at::Tensor y =
        convolve_activated(x, value_of(*weight, x), options.shape,
                           bias == nullptr ? at::Tensor() : value_of(*bias, x), activated);
    context->save_for_backward(
        {weight->trainable ? x : at::Tensor(), activated ? y : at::Tensor()});
    context->saved_data["sizes"] = x.sizes().vec();
    context->saved_data["left"] = options.left.keep();
    context->saved_data["leaves"] = options.leaves.keep();
    keep(context, "weight", weight);
    keep(context, "bias", bias);
    keep_shape(context, options.shape);
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    Parameter &weight = kept(context, "weight"), *bias = kept_or_null(context, "bias");
    const ConvShape shape = kept_shape(context);
    const at::Tensor dy = bias_relu_gradient(dense(grads[0]), saved[1], bias);
    if (weight.trainable) add_conv_weight_gradient(saved[0], dy, shape, weight);
    at::Tensor dx;
    if (context->needs_input_grad(0))
      dx = convolve_input_gradient(dy, value_of(weight, dy), shape,
                                   context->saved_data.at("sizes").toIntVector(),
                                   ResidualGradient(context->saved_data.at("left")).take());
    ResidualGradient leaves(context->saved_data.at("leaves"));
    if (leaves.used() && dx.defined()) {
      leaves.leave(dx);
      dx = at::Tensor();
    }
    return {dx, {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor conv(const at::Tensor& x_BHWC, const ConvShape& shape, Parameter& weight,
                Parameter* bias, ImageActivation activation, const ResidualGradient& left,
                const ResidualGradient& leaves) {
  check_conv(x_BHWC, shape, weight, bias);
  DSTRAIN_CHECK(activation == ImageActivation::none || activation == ImageActivation::relu,
                "a convolution has no other activation than ReLU");
  const bool any_trainable = weight.trainable || (bias != nullptr && bias->trainable);
  return Conv::apply(x_BHWC, anchor_for(x_BHWC, any_trainable), &weight, bias,
                     ConvOptions{shape, activation, left, leaves});
}

}  // namespace dstrain::ops
