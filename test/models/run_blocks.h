#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/autograd.h>

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
                            const Objective& objective) {
  BlockRun run;
  for (const at::Tensor& tensor : before) run.input.push_back(tensor.detach().requires_grad_(true));
  run.output = block.forward(run.input, batch, objective);
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

/// Forward and backward of all blocks; returns the loss. `loss_gradient` is a scalar.
inline at::Tensor run_model(Blocks& blocks, const Batch& batch, const Objective& objective,
                            const at::Tensor& loss_gradient) {
  std::vector<BlockRun> runs;
  for (const auto& block : blocks) {
    runs.push_back(
        run_forward(*block, runs.empty() ? Tensors{} : runs.back().output, batch, objective));
  }
  const at::Tensor loss = runs.back().output[0].detach();
  Tensors gradients = {loss_gradient};
  for (auto run = runs.rbegin(); run != runs.rend(); ++run)
    gradients = run_backward(*run, gradients);
  return loss;
}

}  // namespace dstrain::test
