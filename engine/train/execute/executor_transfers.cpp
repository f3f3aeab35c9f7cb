#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <utility>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/kernels/linear/output_gradient.h"
#include "engine/train/execute/executor.h"

/// Outputs of blocks between the stages of a pipeline, and to the host and back.
namespace dstrain {

Tensors Executor::boundary_tensors(int block) const {
  Tensors tensors;
  const auto options = at::TensorOptions().dtype(options_.compute).device(options_.device);
  for (const BoundaryTensor& tensor : cost_.blocks[to_index(block)].boundary)
    tensors.push_back(at::empty(tensor.shape, options));
  return tensors;
}

void Executor::rehearse(const StepInputs& inputs, BatchSource& source) {
  {
    const StreamScope scope(lane(Lane::compute));
    seed_.zero_();
    context_.sample_seed.zero_();
    set_dropout_seeds(inputs.step);
  }
  synchronize(options_.device);
  rehearse(training_, source, inputs, context_);
}

void Executor::rehearse_evaluation(BatchSource& source) {
  gather_resident();
  rehearse(evaluation_, source, {}, evaluation_context_);
}

void Executor::rehearse(Prepared& prepared, BatchSource& source, const StepInputs& inputs,
                        const BlockContext& context) {
  rehearsing_ = true;
  run(prepared, source, inputs, context);
  rehearsing_ = false;
  finish_updates();
}

bool Executor::left_out(Prepared& prepared, const Action& action) {
  const bool transfer = transfers(action.kind);
  if (transfer && action.comm.front().op == CommOp::receive) {
    const std::size_t id = to_index(action.writes.front());
    prepared.activations.outputs[id] = prepared.received[id];
    for (at::Tensor& tensor : prepared.activations.outputs[id]) tensor.zero_();
    return true;
  }
  return transfer || ends_step(action.kind);
}

void Executor::transfer(Prepared& prepared, std::size_t i) {
  const Action& action = prepared.program->actions[i];
  const Comm& comm = action.comm.front();
  const bool sends = comm.op == CommOp::send;
  Communicator& link = communicator({Axis::pipeline, action.lane});
  const int peer = 1 - link.rank();  // a link has two ranks
  Tensors tensors;
  if (sends) {
    for (const at::Tensor& tensor : output_for(prepared, action))
      tensors.push_back(tensor.detach().contiguous());
  } else {
    const std::size_t id = to_index(action.writes.front());
    tensors = prepared.activations.outputs[id] = prepared.received[id];
  }
  auto perform = [&link, peer, sends, tensors]() mutable {
    for (at::Tensor& tensor : tensors) sends ? link.send(tensor, peer) : link.receive(tensor, peer);
  };
  if (transfer_threads_.empty()) {
    perform();
    return;
  }
  // What the compute lane has done is done, and a transfer waits for no other transfer.
  for (const auto* waits : {&action.after, &action.after_previous}) {
    for (const int other : *waits)
      DSTRAIN_CHECK(!transfer_threads_.contains(prepared.program->actions[to_index(other)].lane),
                    "a transfer waits for a transfer");
  }
  prepared.jobs[i] = transfer_threads_.at(action.lane).add(perform);
}

void Executor::wait_for_transfers(const Prepared& prepared, std::size_t i) {
  const Action& action = prepared.program->actions[i];
  std::vector<int> awaited_ones = action.after;
  awaited_ones.insert(awaited_ones.end(), action.after_previous.begin(),
                      action.after_previous.end());
  for (const int other : awaited_ones) {
    const Action& awaited = prepared.program->actions[to_index(other)];
    if (!transfers(awaited.kind)) continue;
    const bool timed = in_step(prepared);
    const Stream& compute = lane(Lane::compute);
    // Who looks at this rank sees what it waits for.
    const std::int64_t step = record_.get().step.load();
    record_.enter(step, prepared.names[to_index(other)]);
    if (timed) timer_.begin_action(awaited.lane, compute);
    {
      const Comm& comm = awaited.comm.front();
      const CollectiveScope scope(&record_, comm_name(comm.op), 2, comm.bytes);
      transfer_threads_.at(awaited.lane).wait(prepared.jobs[to_index(other)]);
    }
    if (timed) timer_.end_action(awaited.lane, /*communicates=*/true, compute);
    record_.enter(step, prepared.names[i]);
  }
}

/// The host knows of an output only in steps in which its forward was not replayed from a graph;
/// the graph writes it at the same place each time.
Tensors Executor::output_for(const Prepared& prepared, const Action& action) {
  const Tensors& outputs = prepared.activations.outputs[to_index(action.reads.front())];
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
  const bool fetch = action.lane == Lane::copy_in;
  const Stream& stream = lane(action.lane);
  const auto& move = std::get<work::Move>(action.work.front());
  const int host = fetch ? move.from.buffer : move.to.buffer;
  const at::Tensor& memory = prepared.buffers[to_index(host)];
  if (!fetch) return offloader_.evict_input(host, memory, output_for(prepared, action), stream);
  const int slot = move.to.buffer;
  prepared.activations.outputs[to_index(slot)] =
      offloader_.fetch_input(host, memory, prepared.buffers[to_index(slot)], stream);
}

}  // namespace dstrain
