#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <vector>

#include "engine/nn/block.h"

namespace dstrain::test {

/// A block's inputs, which are leaves of its own graph, and its outputs.
struct BlockRun {
  Tensors input;
  Tensors output;
};

/// Runs a block as the executor does, on `before`'s detached outputs.
inline BlockRun run_forward(Block& block, const Tensors& before, const Batch& batch,
                            const BlockContext& context) {
  BlockRun run;
  for (const at::Tensor& tensor : before) run.input.push_back(tensor.detach().requires_grad_(true));
  run.output = block.forward(run.input, batch, context);
  return run;
}

/// Gradients of the inputs from those of the outputs; lets the graph go.
inline Tensors run_backward(BlockRun& run, const Tensors& gradients) {
  Tensors input_gradients;
  if (run.input.empty()) {
    torch::autograd::backward(run.output, gradients);
  } else {
    input_gradients = torch::autograd::grad(run.output, run.input, gradients);
  }
  run = {};
  return input_gradients;
}

/// Whether `block` has a weight that is trained.
inline bool trains(Block& block) {
  return std::ranges::any_of(block.parameters(), &Parameter::trainable);
}

/// Forward of all blocks and backward to the first that trains; returns the loss. `loss_gradient`
/// is a scalar.
inline at::Tensor run_model(Blocks& blocks, const Batch& batch, const BlockContext& context,
                            const at::Tensor& loss_gradient) {
  std::vector<BlockRun> runs;
  for (const auto& block : blocks) {
    runs.push_back(
        run_forward(*block, runs.empty() ? Tensors{} : runs.back().output, batch, context));
  }
  const at::Tensor loss = runs.back().output[0].detach();
  Tensors gradients = {loss_gradient};
  const auto first = std::ranges::find_if(blocks, [](const auto& block) { return trains(*block); });
  for (auto i = static_cast<std::size_t>(first - blocks.begin()), run = runs.size(); run-- > i;)
    gradients = run_backward(runs[run], gradients);
  return loss;
}

}  // namespace dstrain::test
