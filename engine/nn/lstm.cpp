#include "engine/nn/lstm.h"

#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <cmath>

#include "engine/base/error.h"
#include "engine/kernels/ops.h"
#include "engine/kernels/recurrent/ops_lstm.h"
#include "engine/kernels/tensor/ops_graph.h"
#include "engine/nn/layer_cost.h"

namespace dstrain {
namespace {

constexpr std::int64_t kGates = 4;

}  // namespace

Lstm::Lstm(const std::string& prefix, std::int64_t features, std::int64_t width,
           std::int64_t layers)
    : prefix_(prefix), width_(width) {
  for (std::int64_t l = 0; l < layers; ++l) {
    Layer& layer = layers_.emplace_back();
    layer.inputs = l == 0 ? features : width;
    const auto hold = [&](Parameter& parameter, const char* kind, std::vector<std::int64_t> shape) {
      parameter.hold({{fmt::format("{}.{}_l{}", prefix, kind, l), std::move(shape)}});
      parameter.init = Init::uniform;
      parameter.init_std = std::sqrt(1 / (3 * static_cast<double>(width)));
    };
    hold(layer.of_input, "weight_ih", {kGates * width, layer.inputs});
    hold(layer.of_state, "weight_hh", {kGates * width, width});
    hold(layer.input_bias, "bias_ih", {kGates * width});
    hold(layer.state_bias, "bias_hh", {kGates * width});
  }
}

at::Tensor Lstm::forward(const at::Tensor& x, std::int64_t samples) {
  DSTRAIN_CHECK(x.dim() == 2 && samples > 0 && x.size(0) % samples == 0,
                prefix_ + ": rows that are no steps of the samples");
  const std::int64_t steps = x.size(0) / samples;
  at::Tensor input = x, state;
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    Layer& layer = layers_[l];
    // Backward reaches the biases of the first step, too.
    state = ops::in_graph_of(at::zeros({samples, width_}, x.options()), input);
    at::Tensor cell = at::zeros({samples, width_}, x.options().dtype(at::kFloat));
    const std::vector<at::Tensor> of_input = ops::linear(input, layer.of_input, &layer.input_bias)
                                                 .view({samples, steps, kGates * width_})
                                                 .unbind(1);
    std::vector<at::Tensor> states;
    for (const at::Tensor& of_step : of_input) {
      std::tie(state, cell) =
          ops::lstm_step(of_step, ops::linear(state, layer.of_state, &layer.state_bias), cell);
      if (l + 1 < layers_.size()) states.push_back(state);
    }
    if (!states.empty()) input = at::stack(states, 1).view({samples * steps, width_});
  }
  return state;
}

void Lstm::add_parameters(std::vector<Parameter*>& list) {
  for (Layer& layer : layers_)
    list.insert(list.end(),
                {&layer.of_input, &layer.of_state, &layer.input_bias, &layer.state_bias});
}

Features Lstm::run(LayerPass& pass, const Features& x, std::int64_t steps) {
  if (pass.costs == nullptr) return {.tensor = forward(x.tensor, x.tensor.size(0) / steps)};
  add_cost(*pass.costs, x.rows(), steps);
  return x.sized({x.rows() / steps, width_});
}

void Lstm::add_cost(LayerCosts& costs, std::int64_t rows, std::int64_t steps) const {
  const std::int64_t samples = rows / steps;
  const int compute_bytes = costs.compute_bytes();
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    const Layer& layer = layers_[l];
    const Bytes products = rows * kGates * width_ * compute_bytes,
                input = rows * layer.inputs * compute_bytes, states = rows * width_ * compute_bytes,
                cells = rows * width_ * static_cast<Bytes>(kFloatBytes);
    LayerCost cost{.name = fmt::format("{}.l{}", prefix_, l)};
    cost.forward_flops = 2.0 * static_cast<double>(rows) *
                         static_cast<double>(kGates * width_ * (layer.inputs + width_));
    // Without the last state, which what follows keeps; the cells with that before the first step.
    cost.saved_bytes = (layer.of_state.trainable ? states : 0) + products + cells +
                       samples * width_ * static_cast<Bytes>(kFloatBytes);
    if (layer.of_input.trainable) cost.saved_bytes += input;
    for (const Parameter* parameter :
         {&layer.of_input, &layer.of_state, &layer.input_bias, &layer.state_bias})
      count(*parameter, cost);
    const Bytes weights = (layer.of_input.numel() + steps * layer.of_state.numel()) * compute_bytes;
    // A product for all steps' inputs; of each step a product and what is behind it, and backward
    // the latter and two products.
    const Flops flops = cost.forward_flops;
    const auto launches = static_cast<int>(steps);
    costs.add(std::move(cost),
              {{.products = flops,
                .bytes = input + 6 * products + 3 * states + 2 * cells + weights,
                .launches = 1 + 2 * launches}},
              {{.products = 2 * flops,
                .bytes = 2 * input + 8 * products + 4 * states + 4 * cells + 3 * weights,
                .launches = 2 + 3 * launches}});
    // All steps' products; backward their gradients by step, and together.
    costs.hold(products + states, 2 * products + input);
  }
}

}  // namespace dstrain
