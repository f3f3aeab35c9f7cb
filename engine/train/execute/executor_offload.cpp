#include <ATen/ops/from_blob.h>

#include "engine/base/index.h"
#include "engine/kernels/linear/output_gradient.h"
#include "engine/train/execute/executor.h"

/// What the executor does for what rests on the host.
namespace dstrain {

void Executor::update(const Prepared& prepared, const Action& action, const StepInputs& inputs) {
  if (action.part >= 0) {
    const auto& update = std::get<work::Update>(action.work.front());
    offloader_.update(memory_.operands(update, buffers_of(prepared)), inputs.lr, control_,
                      lane(action.lane));
    return;
  }
  updater_.update(
      action.group, inputs.lr, control_,
      action.comm.empty() ? nullptr : &communicator({action.comm.front().axis, Lane::compute}));
  if (inputs.average_share > 0) updater_.average(action.group, inputs.average_share, control_);
}

/// The host knows of an output only in steps in which its forward was not replayed from a graph;
/// the graph writes it at the same place each time.
Tensors Executor::output_for(const Prepared& prepared, const Action& action) {
  const Tensors& outputs = prepared.outputs[to_index(action.reads.front())];
  if (segments_.empty() || &prepared != &training_) return outputs;
  Tensors& kept = written_by_graphs_[{first_loaded_, &action}];
  if (!outputs.empty()) {
    kept.clear();
    for (const at::Tensor& output : outputs) {
      const at::Tensor values = output.detach().contiguous();
      kept.push_back(at::from_blob(values.mutable_data_ptr(), values.sizes(), values.options()));
      ops::copy_needs(output, kept.back());
    }
  }
  return kept;
}

void Executor::move_input(Prepared& prepared, const Action& action) {
  const bool fetch = action.kind == ActionKind::fetch_input;
  const Stream& stream = lane(action.lane);
  const int host =
      prepared.program->find(fetch ? action.reads : action.writes, BufferRole::host_input);
  const at::Tensor& memory = prepared.buffers[to_index(host)];
  if (!fetch) return offloader_.evict_input(host, memory, output_for(prepared, action), stream);
  const int slot = action.writes.front();
  prepared.outputs[to_index(slot)] =
      offloader_.fetch_input(host, memory, prepared.buffers[to_index(slot)], stream);
}

}  // namespace dstrain
