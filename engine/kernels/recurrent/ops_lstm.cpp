#include "engine/kernels/recurrent/ops_lstm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/tanh_backward.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include "engine/base/error.h"
#include "engine/kernels/op_support.h"
#include "engine/kernels/recurrent/kernels.h"

namespace dstrain::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The next state and cell, and the gates, which backward needs.
struct Stepped {
  at::Tensor state, next, gates;
};

Stepped stepped_cpu(const at::Tensor& of_input, const at::Tensor& of_state,
                    const at::Tensor& cell) {
  const at::Tensor z = of_input.to(at::kFloat) + of_state;
  const std::int64_t width = cell.size(1);
  const auto part = [&](std::int64_t gate) { return z.narrow(1, gate * width, width); };
  const at::Tensor in = part(0).sigmoid(), forget = part(1).sigmoid(), fresh = part(2).tanh(),
                   out = part(3).sigmoid();
  at::Tensor next = forget * cell + in * fresh;
  at::Tensor state = (out * next.tanh()).to(of_state.scalar_type());
  return {std::move(state), std::move(next),
          at::cat({in, forget, fresh, out}, 1).to(of_state.scalar_type())};
}

Stepped stepped_cuda(const at::Tensor& of_input, const at::Tensor& of_state,
                     const at::Tensor& cell) {
  const at::Tensor input = of_input.stride(1) == 1 ? of_input : dense(of_input);
  Stepped made{.state = at::empty(cell.sizes(), of_state.options()),
               .next = at::empty_like(cell),
               .gates = at::empty_like(of_state)};
  kernels::cuda::lstm_step({.of_input = input.const_data_ptr(),
                            .input_stride = input.stride(0),
                            .of_state = of_state.const_data_ptr(),
                            .cell = cell.const_data_ptr<float>(),
                            .gates = made.gates.mutable_data_ptr(),
                            .next = made.next.mutable_data_ptr<float>(),
                            .state = made.state.mutable_data_ptr(),
                            .rows = cell.size(0),
                            .width = cell.size(1),
                            .dtype = kernel_dtype(of_state)},
                           current_stream());
  return made;
}

/// What backward has, and the gradients of the next state and cell; undefined: zero.
struct StepInputs {
  at::Tensor gates, cell, next, dstate, dnext;
};
/// Gradients of z and of the cell.
struct StepGradients {
  at::Tensor dz, dcell;
};

StepGradients step_gradients_cpu(const StepInputs& of) {
  const at::Tensor gates = of.gates.to(at::kFloat), bounded = of.next.tanh();
  const std::int64_t width = of.cell.size(1);
  const auto part = [&](std::int64_t gate) { return gates.narrow(1, gate * width, width); };
  const at::Tensor in = part(0), forget = part(1), fresh = part(2), out = part(3);
  at::Tensor dnext = of.dnext, dout;
  if (of.dstate.defined()) {
    const at::Tensor dstate = of.dstate.to(at::kFloat);
    dout = dstate * bounded;
    const at::Tensor through = at::tanh_backward(dstate * out, bounded);
    dnext = dnext.defined() ? dnext + through : through;
  } else {
    dout = out.mul(0);
  }
  at::Tensor dz = at::cat({at::sigmoid_backward(dnext * fresh, in),
                           at::sigmoid_backward(dnext * of.cell, forget),
                           at::tanh_backward(dnext * in, fresh), at::sigmoid_backward(dout, out)},
                          1)
                      .to(of.gates.scalar_type());
  return {std::move(dz), dnext * forget};
}

StepGradients step_gradients_cuda(const StepInputs& of) {
  StepGradients made{.dz = at::empty_like(of.gates), .dcell = at::empty_like(of.cell)};
  const at::Tensor dstate = of.dstate.defined() ? dense(of.dstate) : of.dstate,
                   dnext = of.dnext.defined() ? dense(of.dnext) : of.dnext;
  kernels::cuda::lstm_step_backward(
      {.gates = of.gates.const_data_ptr(),
       .cell = of.cell.const_data_ptr<float>(),
       .next = of.next.const_data_ptr<float>(),
       .grad_state = dstate.defined() ? dstate.const_data_ptr() : nullptr,
       .grad_next = dnext.defined() ? dnext.const_data_ptr<float>() : nullptr,
       .grad_z = made.dz.mutable_data_ptr(),
       .grad_cell = made.dcell.mutable_data_ptr<float>(),
       .rows = of.cell.size(0),
       .width = of.cell.size(1),
       .dtype = kernel_dtype(of.gates)},
      current_stream());
  return made;
}

struct LstmStep : torch::autograd::Function<LstmStep> {
  static variable_list forward(AutogradContext* context, const at::Tensor& of_input,
                               const at::Tensor& of_state, const at::Tensor& given_cell) {
    const at::Tensor cell = dense(given_cell);
    const Stepped made = cell.is_cuda() ? stepped_cuda(of_input, dense(of_state), cell)
                                        : stepped_cpu(of_input, of_state, cell);
    context->save_for_backward({made.gates, cell, made.next});
    return {made.state, made.next};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const StepInputs of{.gates = saved[0],
                        .cell = saved[1],
                        .next = saved[2],
                        .dstate = grads[0],
                        .dnext = grads[1]};
    const StepGradients made = of.cell.is_cuda() ? step_gradients_cuda(of) : step_gradients_cpu(of);
    return {made.dz, made.dz, made.dcell};
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
