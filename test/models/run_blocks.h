#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/autograd.h>

#include <vector>

#include "engine/nn/block.h"

namespace dstrain::test {

/// Runs the blocks as the executor does: each block's inputs are detached, its graph is its own.
class BlockRun {
 public:
  /// Returns the block's output.
  Tensors& forward(Block& block, const Batch& batch, const Objective& objective) {
    Tensors input;
    if (!outputs_.empty()) {
      for (const at::Tensor& tensor : outputs_.back()) input.push_back(tensor.detach().requires_grad_(true));
    }
    inputs_.push_back(input);
    outputs_.push_back(block.forward(input, batch, objective));
    return outputs_.back();
  }

  /// Backward of the newest block; `gradients` are those of its outputs. Returns those of its inputs.
  Tensors backward(const Tensors& gradients) {
    torch::autograd::backward(outputs_.back(), gradients);
    outputs_.pop_back();
    Tensors input_gradients;
    for (const at::Tensor& input : inputs_.back()) input_gradients.push_back(input.grad());
    inputs_.pop_back();
    return input_gradients;
  }

  [[nodiscard]] const Tensors& input() const { return inputs_.back(); }
  [[nodiscard]] const Tensors& output() const { return outputs_.back(); }

 private:
  std::vector<Tensors> inputs_;
  std::vector<Tensors> outputs_;
};

}  // namespace dstrain::test
