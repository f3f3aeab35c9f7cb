#pragma once

#include "engine/kernels/activation/gate_context.h"
#include "engine/kernels/activation/swiglu.h"

namespace dstrain::test {

struct Swiglu : torch::autograd::Function<Swiglu> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& gate_up,
                            ops::GateActivation gate) {
    context->save_for_backward({gate_up});
    ops::keep_gate(context, gate);
    return ops::swiglu_of(gate_up, gate);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    return {ops::swiglu_gradients(context->get_saved_variables()[0], ops::kept_gate(context),
                                  grads[0].contiguous(), /*again=*/false)
                .gate_up,
            {}};
  }
};

/// The activation of gated MLPs alone, whose parts operators share.
[[nodiscard]] inline at::Tensor swiglu(const at::Tensor& gate_up,
                                       ops::GateActivation gate = ops::GateActivation::silu) {
  return Swiglu::apply(gate_up, gate);
}

}  // namespace dstrain::test
