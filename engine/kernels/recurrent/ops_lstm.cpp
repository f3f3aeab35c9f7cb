#include "engine/kernels/recurrent/ops_lstm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/tanh_backward.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include "engine/base/error.h"
#include "engine/kernels/op_support.h"

namespace dstrain::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct LstmStep : torch::autograd::Function<LstmStep> {
  static variable_list forward(AutogradContext* context, const at::Tensor& of_input,
                               const at::Tensor& of_state, const at::Tensor& cell) {
    const at::Tensor z = of_input.to(at::kFloat) + of_state;
    const std::int64_t width = cell.size(1);
    const auto part = [&](std::int64_t gate) { return z.narrow(1, gate * width, width); };
    const at::Tensor in = part(0).sigmoid(), forget = part(1).sigmoid(), fresh = part(2).tanh(),
                     out = part(3).sigmoid();
    at::Tensor next = forget * cell + in * fresh;
    at::Tensor state = (out * next.tanh()).to(of_state.scalar_type());
    context->save_for_backward(
        {at::cat({in, forget, fresh, out}, 1).to(of_state.scalar_type()), cell, next});
    return {state, next};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor gates = saved[0].to(at::kFloat), &cell = saved[1], &next = saved[2];
    const std::int64_t width = cell.size(1);
    const auto part = [&](std::int64_t gate) { return gates.narrow(1, gate * width, width); };
    const at::Tensor in = part(0), forget = part(1), fresh = part(2), out = part(3),
                     bounded = next.tanh();
    at::Tensor dnext = grads[1], dout;
    if (grads[0].defined()) {
      const at::Tensor dstate = grads[0].to(at::kFloat);
      dout = dstate * bounded;
      const at::Tensor through = at::tanh_backward(dstate * out, bounded);
      dnext = dnext.defined() ? dnext + through : through;
    } else {
      dout = out.mul(0);
    }
    const at::Tensor dz =
        at::cat(
            {at::sigmoid_backward(dnext * fresh, in), at::sigmoid_backward(dnext * cell, forget),
             at::tanh_backward(dnext * in, fresh), at::sigmoid_backward(dout, out)},
            1)
            .to(saved[0].scalar_type());
    return {dz, dz, dnext * forget};
  }
};

}  // namespace

std::pair<at::Tensor, at::Tensor> lstm_step(const at::Tensor& of_input, const at::Tensor& of_state,
                                            const at::Tensor& cell) {
  DSTRAIN_CHECK(of_input.dim() == 2 && of_input.sizes() == of_state.sizes() && cell.dim() == 2 &&
                    of_input.size(0) == cell.size(0) && of_input.size(1) == 4 * cell.size(1),
                fmt::format("lstm_step: {} and {}, cell {}", shape_of(of_input), shape_of(of_state),
                            shape_of(cell)));
  const variable_list next = LstmStep::apply(of_input, of_state, cell);
  return {next[0], next[1]};
}

}  // namespace dstrain::ops
