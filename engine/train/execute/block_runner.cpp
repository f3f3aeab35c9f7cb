#include "engine/train/execute/block_runner.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "engine/base/index.h"
#include "engine/kernels/later_scope.h"

namespace dstrain {

void Activations::free(const Action& action) {
  for (const int id : action.frees) {
    outputs[to_index(id)].clear();
    inputs[to_index(id)].clear();
    deferred[to_index(id)].clear();
  }
}

void BlockRunner::forward(const Program& program, const Action& action, const Batch& batch,
                          const BlockContext& context, Activations& activations) {
  const std::size_t block = to_index(action.block);
  const int saved = program.find(action.writes, BufferRole::saved);
  const bool keep = saved >= 0;
  Tensors inputs;
  int input = program.find(action.reads, BufferRole::fetched_input);
  if (input < 0) input = program.find(action.reads, BufferRole::output);
  if (input >= 0) {
    for (const at::Tensor& tensor : activations.outputs[to_index(input)]) {
      inputs.push_back(tensor.detach());
      if (keep) inputs.back().requires_grad_(true);
    }
  }
  // A recomputation must not count its samples a second time; only the head counts, and it is never
  // recomputed.
  const at::AutoGradMode mode(keep);
  const int output = program.find(action.writes, BufferRole::output);
  Tensors& outputs = activations.outputs[to_index(output)];
  outputs = model_.blocks[block]->forward(inputs, batch, context);
  if (keep) activations.inputs[to_index(saved)] = std::move(inputs);
  if (watch_) watch_(action.block, outputs);
}

void BlockRunner::backward(const Program& program, const Action& action,
                           const at::Tensor& loss_gradient, Activations& activations) {
  // It frees its own output, and may read and free that of the block before.
  const auto own = std::ranges::find_if(action.frees, [&](int id) {
    const Buffer& buffer = program.buffers[to_index(id)];
    return buffer.role == BufferRole::output && buffer.owner == action.block;
  });
  const Tensors& outputs = activations.outputs[to_index(*own)];
  const Tensors& inputs =
      activations.inputs[to_index(program.find(action.frees, BufferRole::saved))];
  const int ends_chunk = program.find(action.reads, BufferRole::output_gradient),
            begins_chunk = program.find(action.writes, BufferRole::output_gradient);
  Tensors& handed_on = output_gradients_[action.lane];
  Tensors seeds =
      ends_chunk >= 0 ? activations.outputs[to_index(ends_chunk)] : std::exchange(handed_on, {});
  if (to_index(action.block) + 1 == model_.blocks.size()) seeds = {loss_gradient};
  const int held = program.find(action.writes, BufferRole::held);
  const LaterScope scope(model_.blocks[to_index(action.block)]->parameters(),
                         held < 0 ? nullptr : &activations.deferred[to_index(held)]);
  if (inputs.empty()) {
    torch::autograd::backward(outputs, seeds);
    return;
  }
  Tensors& gradients = begins_chunk >= 0 ? activations.outputs[to_index(begins_chunk)] : handed_on;
  gradients = torch::autograd::grad(outputs, inputs, seeds);
}

void BlockRunner::backward_weight(const Program& program, const Action& action,
                                  const Activations& activations) {
  const int held = program.find(action.frees, BufferRole::held);
  for (const auto& work : activations.deferred[to_index(held)]) work();
}

}  // namespace dstrain
