#include "engine/nn/gated_mlp.h"

#include <algorithm>
#include <utility>

#include "engine/nn/tensor_exchanges.h"

namespace dstrain {

namespace {

std::vector<LinearPart> gate_up_parts(const GatedMlpNames& names, std::int64_t mlp_width) {
  if (names.up.empty()) return {{names.gate, 2 * mlp_width}};
  return {{names.gate, mlp_width}, {names.up, mlp_width}};
}

}  // namespace

GatedMlp::GatedMlp(const GatedMlpNames& names, std::int64_t width, std::int64_t mlp_width,
                   const InitialWeights& init, const AxisPart& tensor, const GateOptions& options)
    : mlp_width_(mlp_width / tensor.count),
      tensor_(tensor),
      options_(options),
      gate_up_(gate_up_parts(names, mlp_width), {width}, init, options.has_biases,
               {LinearCut::By::rows, tensor}),
      down_({{names.down, width}}, {mlp_width}, init, options.has_biases,
            {LinearCut::By::columns, tensor}) {}

at::Tensor GatedMlp::forward(const ops::Measured& x_mD, const Call& call) {
  return down_.forward_gated(x_mD, gate_up_, options_.gate, call);
}

Features GatedMlp::run(LayerPass& pass, const Features& x, const Workspace& beside) {
  if (pass.costs == nullptr) return {.tensor = forward(x.measured(), pass.call)};
  const std::int64_t rows = x.rows() * tensor_.count;
  const int compute_bytes = pass.costs->compute_bytes();
  return add_branch(*pass.costs, x, layers(rows, compute_bytes, x.counted), tensor_,
                    workspace(rows, compute_bytes) + beside);
}

std::vector<LayerCost> GatedMlp::layers(std::int64_t rows, int compute_bytes,
                                        bool input_is_kept) const {
  const Bytes hidden = rows * mlp_width_ * compute_bytes;
  LayerCost gate_up = gate_up_.cost(rows, compute_bytes, input_is_kept),
            down = down_.cost(rows, compute_bytes, true);
  // Gate and up; the gradients of the weight and of adapters make their product again.
  LayerCost swiglu{.name = options_.gate == ops::GateActivation::silu ? "SwiGLU" : "GEGLU",
                   .saved_bytes = 2 * hidden};
  // What an adapter adds to the product's gradient is never written.
  if (down_.gated_in_kernels(compute_bytes)) down.backward_traffic -= 2 * hidden;
  const bool one_operator =
      !options_.has_biases && !down_.has_adapters() && !gate_up_.has_adapters();
  if (one_operator && down_.weight().trainable && down.fp8_flops == 0) swiglu.hidden_bytes = hidden;
  if (one_operator && gate_up.fp8_flops > 0 && down.fp8_flops > 0) {
    // In ops::gated_linear the product's largest values come with it, its codes by columns and
    // those of the gradients of gate and up are written by the kernel that makes these.
    const std::int64_t elements = rows * mlp_width_;
    down.forward_traffic = elements * (compute_bytes + 1);
    gate_up.backward_traffic = 0;
    swiglu.backward_traffic = 5 * elements;
  }
  return {std::move(gate_up), std::move(swiglu), std::move(down)};
}

Workspace GatedMlp::workspace(std::int64_t rows, int compute_bytes) const {
  const Bytes hidden = rows * mlp_width_ * compute_bytes,
              gate_up = gate_up_.decoded_bytes(compute_bytes),
              down = down_.decoded_bytes(compute_bytes);
  // The product of gate and up until it is multiplied.
  const Bytes forward = hidden + std::max(gate_up, down);
  // Backward, its gradient, those of gate and up, and the product once more; kernels of adapters
  // hold that in registers. The gradient of gate and up is left when their matrix is decoded.
  if (!down_.has_adapters())
    return {.forward = forward, .backward = 4 * hidden + std::max(gate_up, down)};
  const bool again = !down_.gated_in_kernels(compute_bytes);
  return {.forward = forward,
          .backward = std::max(
              {(again ? 4 : 3) * hidden, (again ? 2 : 1) * hidden + down, 2 * hidden + gate_up})};
}

void GatedMlp::add_parameters(std::vector<Parameter*>& list) {
  gate_up_.add_parameters(list);
  down_.add_parameters(list);
}

}  // namespace dstrain
