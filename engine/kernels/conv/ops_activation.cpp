#include "engine/kernels/conv/ops_activation.h"

#include <torch/csrc/autograd/custom_function.h>

namespace dstrain::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Activate : torch::autograd::Function<Activate> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& z,
                            ImageActivation activation) {
    context->save_for_backward({z});
    context->saved_data["activation"] = static_cast<std::int64_t>(activation);
    return activate(z, activation);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto activation =
        static_cast<ImageActivation>(context->saved_data.at("activation").toInt());
    return {activation_gradient(grads[0], context->get_saved_variables()[0], activation), {}};
  }
};

}  // namespace

at::Tensor image_activation(const at::Tensor& z, ImageActivation activation) {
  return activation == ImageActivation::none ? z : Activate::apply(z, activation);
}

}  // namespace dstrain::ops
