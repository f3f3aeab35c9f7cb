#include "engine/kernels/excite/excite.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/hardsigmoid.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include "engine/base/error.h"
#include "engine/kernels/batch_norm/batch_norm_gpu.h"
#include "engine/kernels/excite/kernels.h"
#include "engine/kernels/gradient_sink.h"
#include "engine/kernels/linear/linear_map.h"
#include "engine/kernels/op_support.h"

namespace dstrain::ops {
namespace {

bool has_kernel(const at::Tensor& mean, std::int64_t squeezed) {
  return mean.is_cuda() && kernels::excite_fits(mean.size(1), squeezed);
}

kernels::GateRule gate_rule(Gate gate) {
  return gate == Gate::sigmoid ? kernels::GateRule::sigmoid : kernels::GateRule::hard_sigmoid;
}

Gates gates_cuda(const at::Tensor& mean, const ExciteCall& call) {
  const std::int64_t squeezed = call.reduce.value.size(0);
  const Gates made{.hidden = scratch(mean, {mean.size(0), squeezed}),
                   .gate = scratch(mean, mean.sizes())};
  kernels::cuda::excite({.mean = mean.const_data_ptr(),
                         .reduce = value_of(call.reduce, mean).const_data_ptr(),
                         .reduce_bias = value_of(call.reduce_bias, mean).const_data_ptr(),
                         .expand = value_of(call.expand, mean).const_data_ptr(),
                         .expand_bias = value_of(call.expand_bias, mean).const_data_ptr(),
                         .hidden = made.hidden.mutable_data_ptr<float>(),
                         .gate = made.gate.mutable_data_ptr<float>(),
                         .samples = mean.size(0),
                         .channels = mean.size(1),
                         .squeezed = squeezed,
                         .activation = kernel_activation(call.activation),
                         .rule = gate_rule(call.gate),
                         .dtype = kernel_dtype(mean)},
                        current_stream());
  return made;
}

at::Tensor gates_gradient_cuda(const at::Tensor& grad_gate, const at::Tensor& mean,
                               const Gates& gates, const ExciteCall& call) {
  const std::int64_t samples = mean.size(0), channels = mean.size(1),
                     squeezed = gates.hidden.size(1);
  const at::Tensor grad_hidden = scratch(mean, gates.hidden.sizes()),
                   grad_mean = scratch(mean, mean.sizes());
  kernels::cuda::excite_backward({.hidden = gates.hidden.const_data_ptr<float>(),
                                  .gate = gates.gate.const_data_ptr<float>(),
                                  .grad_gate = grad_gate.const_data_ptr<float>(),
                                  .reduce = value_of(call.reduce, mean).const_data_ptr(),
                                  .expand = value_of(call.expand, mean).const_data_ptr(),
                                  .grad_z = grad_gate.mutable_data_ptr<float>(),
                                  .grad_hidden = grad_hidden.mutable_data_ptr<float>(),
                                  .grad_mean = grad_mean.mutable_data_ptr<float>(),
                                  .samples = samples,
                                  .channels = channels,
                                  .squeezed = squeezed,
                                  .activation = kernel_activation(call.activation),
                                  .rule = gate_rule(call.gate),
                                  .dtype = kernel_dtype(mean)},
                                 current_stream());
  if (!call.trains()) return grad_mean;
  const Fp32Sum reduce = GradientSink(call.reduce, mean).fp32(/*can_write=*/true),
                expand = GradientSink(call.expand, mean).fp32(/*can_write=*/true);
  kernels::cuda::excite_parameters(
      {.mean = mean.const_data_ptr(),
       .hidden = gates.hidden.const_data_ptr<float>(),
       .grad_z = grad_gate.const_data_ptr<float>(),
       .grad_hidden = grad_hidden.const_data_ptr<float>(),
       .grad_reduce = reduce.data(),
       .grad_reduce_bias = GradientSink(call.reduce_bias, mean).vector(),
       .grad_expand = expand.data(),
       .grad_expand_bias = GradientSink(call.expand_bias, mean).vector(),
       .samples = samples,
       .channels = channels,
       .squeezed = squeezed,
       .activation = kernel_activation(call.activation),
       .dtype = kernel_dtype(mean),
       .write_reduce = reduce.write(),
       .write_expand = expand.write()},
      current_stream());
  reduce.finish();
  expand.finish();
  return grad_mean;
}

at::Tensor wide_matrix(const Parameter& weight, const at::Tensor& x) {
  return matrix_of(weight, x).to(at::kFloat);
}

/// Adds the gradients of a map y = x weight^T + bias.
void add_map_gradients(const at::Tensor& x, const at::Tensor& dy, Parameter& weight,
                       Parameter& bias, const at::Tensor& like) {
  if (weight.trainable) GradientSink(weight, like).add(at::matmul(dy.t(), x));
  if (bias.trainable) GradientSink(bias, like).add(dy.sum(0));
}

}  // namespace

void check_excite(const at::Tensor& x, std::int64_t channels, const ExciteCall& call) {
  const at::Tensor reduce = matrix_of(call.reduce, x), expand = matrix_of(call.expand, x);
  const std::int64_t squeezed = reduce.size(0);
  DSTRAIN_CHECK(reduce.size(1) == channels &&
                    expand.sizes() == at::IntArrayRef({channels, squeezed}) &&
                    is_vector(value_of(call.reduce_bias, x), squeezed, x.scalar_type(), x) &&
                    is_vector(value_of(call.expand_bias, x), channels, x.scalar_type(), x),
                fmt::format("excitation of {} channels: weights {} and {}", channels,
                            shape_of(call.reduce.value), shape_of(call.expand.value)));
}

Gates gates_of(const at::Tensor& mean, const ExciteCall& call) {
  if (has_kernel(mean, call.reduce.value.size(0))) return gates_cuda(mean, call);
  const auto map = [&](const at::Tensor& x, const Parameter& weight, const Parameter& bias) {
    return at::addmm(value_of(bias, mean).to(at::kFloat), x, wide_matrix(weight, mean).t());
  };
  Gates made;
  made.hidden = map(mean.to(at::kFloat), call.reduce, call.reduce_bias);
  const at::Tensor z = map(activate(made.hidden, call.activation), call.expand, call.expand_bias);
  made.gate = call.gate == Gate::sigmoid ? at::sigmoid(z) : at::hardsigmoid(z);
  return made;
}

at::Tensor gates_gradient(const at::Tensor& grad_gate, const at::Tensor& mean, const Gates& gates,
                          const ExciteCall& call) {
  if (has_kernel(mean, gates.hidden.size(1)))
    return gates_gradient_cuda(grad_gate, mean, gates, call);
  const at::Tensor dz = call.gate == Gate::sigmoid
                            ? at::sigmoid_backward(grad_gate, gates.gate)
                            : at::where(gates.gate.gt(0).logical_and_(gates.gate.lt(1)),
                                        grad_gate / 6, at::zeros_like(grad_gate));
  const at::Tensor dhidden = activation_gradient(at::matmul(dz, wide_matrix(call.expand, mean)),
                                                 gates.hidden, call.activation);
  add_map_gradients(activate(gates.hidden, call.activation), dz, call.expand, call.expand_bias,
                    mean);
  add_map_gradients(mean.to(at::kFloat), dhidden, call.reduce, call.reduce_bias, mean);
  return at::matmul(dhidden, wide_matrix(call.reduce, mean));
}

}  // namespace dstrain::ops
