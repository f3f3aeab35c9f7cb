#include <ATen/ops/from_blob.h>

#include "engine/base/index.h"
#include "engine/kernels/linear/output_gradient.h"
#include "engine/train/execute/executor.h"

/// What the executor does for what rests on the host.
namespace dstrain {

at::Tensor Executor::buffer_of(const Prepared& prepared, const std::vector<int>& ids,
                               BufferRole role) {
  const int id = prepared.program->find(ids, role);
  return id < 0 ? at::Tensor() : prepared.buffers[to_index(id)];
}

at::Tensor Executor::slot_of(const Prepared& prepared, const Action& action) const {
  const bool host = layout_.groups[to_index(action.group)].update_method == UpdateMethod::host;
  const BufferRole role = host ? BufferRole::gradient_slot : BufferRole::state_slot;
  const at::Tensor written = buffer_of(prepared, action.writes, role);
  return written.defined() ? written : buffer_of(prepared, action.reads, role);
}

void Executor::update(const Prepared& prepared, const Action& action, const StepInputs& inputs) {
  if (layout_.groups[to_index(action.group)].update_method == UpdateMethod::device) {
    updater_.update(
        action.group, inputs.lr, control_,
        action.comm.empty() ? nullptr : &communicator({action.comm.front().axis, Lane::compute}));
    if (inputs.average_share > 0) updater_.average(action.group, inputs.average_share, control_);
    return;
  }
  offloader_.update(action, inputs.lr, control_, slot_of(prepared, action), lane(action.lane));
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

void Executor::fetch_or_evict(Prepared& prepared, const Action& action) {
  using enum ActionKind;
  const Stream& stream = lane(action.lane);
  if (action.kind == fetch_parameters) {
    const FlatGroup& flat = states_.flat(action.group);
    const at::Tensor whole =
        buffer_of(prepared, action.writes, BufferRole::gathered).narrow(0, 0, flat.padded());
    const Range own = states_.own_range(action.group);
    offloader_.fetch_parameters(action.group, whole.narrow(0, own.begin, own.size()), stream);
    if (!layout_.gathered(action.group)) states_.bind_values(action.group, whole);
    return;
  }
  if (action.kind == fetch_input || action.kind == evict_input) {
    const auto& ids = action.kind == fetch_input ? action.reads : action.writes;
    const int host = prepared.program->find(ids, BufferRole::host_input);
    const at::Tensor& memory = prepared.buffers[to_index(host)];
    if (action.kind == evict_input) {
      offloader_.evict_input(host, memory, output_for(prepared, action), stream);
    } else {
      const int slot = prepared.program->find(action.writes, BufferRole::fetched_input);
      prepared.outputs[to_index(slot)] =
          offloader_.fetch_input(host, memory, prepared.buffers[to_index(slot)], stream);
    }
    return;
  }
  const at::Tensor slot = slot_of(prepared, action);
  action.kind == fetch_states ? offloader_.fetch_states(action, slot, stream)
                              : offloader_.evict_states(action, slot, stream);
}

}  // namespace dstrain
