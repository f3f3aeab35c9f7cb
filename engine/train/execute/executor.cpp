#include "engine/train/execute/executor.h"

#include <ATen/ops/div.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/philox.h"
#include "engine/device/pinned.h"
#include "engine/kernels/copy/copy.h"
#include "engine/kernels/optimizer/optimizer.h"
#include "engine/train/session/learning_rate.h"

namespace dstrain {
namespace {

constexpr std::int64_t kEagerSteps = 3;  ///< until handles, plans and tuned products are there

/// The point that `stream` has been given work up to, with its time.
std::shared_ptr<const Event> moment(const Stream& stream) {
  auto event = std::make_shared<Event>(stream.device(), Event::Timing::yes);
  event->record(stream);
  return event;
}

/// `gradients`: as they are held.
at::ScalarType type_of(Elements elements, at::ScalarType compute, at::ScalarType gradients) {
  switch (elements) {
    case Elements::parameters:
      return compute;
    case Elements::gradients:
      return gradients;
    case Elements::wire:
      return at::kBFloat16;
    case Elements::none:
    case Elements::codes:
    case Elements::mixed:
      break;
  }
  return at::kByte;
}

}  // namespace

Executor::Executor(Model& model, const ModelCost& cost, const Strategy& strategy,
                   StateStore& states, Communicators& communicators, const ExecutorOptions& options,
                   RankRecordFile& record)
    : model_(model),
      cost_(cost),
      data_ranks_(strategy.batch.data_ranks),
      states_(states),
      communicators_(communicators),
      options_(options),
      record_(record),
      samples_(strategy.batch.micro),
      training_(prepare(strategy.training)),
      evaluation_(prepare(strategy.evaluation)),
      gathering_(prepare(strategy.gathering)),
      updater_(states,
               {.optimizer = options.optimizer, .compute = options.compute, .seed = options.seed}),
      offloader_(strategy.training, states, updater_, options.offload),
      groups_(states, communicators, offloader_, updater_,
              {.seed = options.seed, .data_rank = options.data_rank}),
      blocks_(model),
      step_end_(options.device),
      timer_(options.device, options.timed_every, record),
      sums_(step_sum_elements(all_states(model)), num_figures(), options.device),
      running_states_(all_states(model), sums_.running()),
      transient_slots_(transient_slots(strategy.training)),
      parks_state_(strategy.options.park_state) {
  for (int name = 0; name < kNumLanes; ++name) {
    // Communication is short and others wait for it; compute is long.
    const bool urgent = !computes(static_cast<Lane>(name));
    lanes_.push_back(
        Stream::from_pool(options.device, urgent ? StreamPriority::high : StreamPriority::normal));
  }
  for (auto& [channel, ranks] : communicators) {
    if (channel.axis == Axis::pipeline && !options.device.is_cuda())
      transfer_threads_.try_emplace(channel.lane, [&link = *ranks] { link.cancel(); });
  }
  allocate_buffers();
  const auto fp32 = at::TensorOptions().dtype(at::kFloat).device(options.device);
  context_.pair_loss = options.pair_loss;
  context_.pair_figures = sums_.pair_figures();
  context_.label_smoothing = options.optimizer.label_smoothing;
  context_.totals = sums_.totals();
  context_.keep_hidden = strategy.training.keeps_hidden;
  evaluation_context_.mode = Mode::evaluate;
  evaluation_context_.totals = context_.totals;
  evaluation_context_.pair_loss = context_.pair_loss;
  evaluation_context_.pair_figures = context_.pair_figures;
  for (auto& [channel, ranks] : communicators) {
    if (channel.lane == Lane::compute) context_.peers.set(channel.axis, ranks.get());
    if (channel.lane == Lane::compute_beside) peers_beside_.set(channel.axis, ranks.get());
  }
  evaluation_context_.peers = context_.peers;
  seed_ = at::zeros({}, fp32);
  context_.sample_seed = at::zeros({}, fp32);
  if (options.dropout)
    dropout_seeds_ = at::zeros({strategy.training.micro_batches}, fp32.dtype(at::kLong));
  loaded_.resize(strategy.training.batches().size());
  segment_of_.resize(strategy.training.actions.size());
  if (options.graphs && options.device.is_cuda() && worth_recording(strategy.training, cost))
    segments_ = find_segments(strategy.training);
  for (std::size_t s = 0; s < segments_.size(); ++s) {
    for (const int i : segments_[s].actions) segment_of_[to_index(i)] = s;
  }
  set_control({.loss_scale = first_loss_scale(options.precision)});
}

Executor::Prepared Executor::prepare(const Program& program) const {
  Prepared prepared(program);
  for (const Action& action : program.actions) {
    prepared.names.push_back(describe(action, cost_));
    if (action.kind == ActionKind::receive)
      prepared.received[to_index(action.writes.front())] = boundary_tensors(action.block);
    for (const auto* waits : {&action.after, &action.after_previous}) {
      for (const int other : *waits) {
        auto& event = prepared.events[to_index(other)];
        if (!event) event.emplace(options_.device);
      }
    }
  }
  return prepared;
}

void Executor::allocate_buffers() {
  const auto each = [&](auto&& visit) {
    for (Prepared* prepared : {&training_, &evaluation_}) {
      std::map<BufferRole, int> seen;
      for (std::size_t id = 0; id < prepared->buffers.size(); ++id) {
        const Buffer& buffer = prepared->program->buffers[id];
        if (role_row(buffer.role).elements != Elements::none && !buffer.transient)
          visit(std::pair(buffer.role, seen[buffer.role]++), buffer, prepared->buffers[id]);
      }
    }
  };
  // The n-th buffer of a role is the same memory in both programs.
  std::map<std::pair<BufferRole, int>, std::int64_t> elements;
  each([&](const auto& place, const Buffer& buffer, at::Tensor&) {
    elements[place] = std::max(elements[place], buffer.elements);
  });
  std::map<std::pair<BufferRole, int>, at::Tensor> tensors;
  each([&](const auto& place, const Buffer& buffer, at::Tensor& tensor) {
    const Elements own = role_row(buffer.role).elements;
    if (own == Elements::mixed) {
      tensor = offloader_.allocate(buffer);  // of the training program alone
      return;
    }
    if (!tensors.contains(place)) {
      const at::ScalarType dtype = type_of(own, options_.compute, states_.gradient_type());
      DSTRAIN_CHECK(static_cast<int>(c10::elementSize(dtype)) == buffer.width,
                    "the program's elements are of another width");
      tensors[place] =
          at::zeros({elements[place]}, at::TensorOptions().dtype(dtype).device(options_.device));
    }
    tensor = tensors[place];
  });
}

Bytes Executor::allocated_bytes(BufferRole role) const {
  std::map<const void*, Bytes> distinct;
  for (const Prepared* prepared : {&training_, &evaluation_}) {
    for (const int id : prepared->program->buffers_of(role)) {
      const at::Tensor& tensor = prepared->buffers[to_index(id)];
      if (tensor.defined() && tensor.device() == options_.device)
        distinct[tensor.const_data_ptr()] = static_cast<Bytes>(tensor.nbytes());
    }
  }
  Bytes bytes = 0;
  for (const auto& [place, size] : distinct) bytes += size;
  return bytes;
}

void Executor::enqueue(const StepInputs& inputs, BatchSource& source) {
  const std::shared_ptr<const Event> start =
      pending_.empty() ? moment(lane(Lane::compute)) : pending_.back().end;
  if (observer_ != nullptr) observer_->begin_step(inputs.step);
  timer_.begin(inputs.step, lane(Lane::compute));
  {
    const StreamScope scope(lane(Lane::compute));
    sums_.clear();
    const auto mean_over = [&](std::int64_t number) {
      return at::div(sums_.control().select(0, optimizer::kLossScale),
                     std::max(1.0, static_cast<double>(number)));
    };
    seed_.copy_(mean_over(inputs.targets));
    context_.sample_seed.copy_(mean_over(inputs.samples));
    set_dropout_seeds(inputs.step);
  }
  run(training_, source, inputs, context_);
  const StreamScope scope(lane(Lane::compute));
  Pending pending{.step = inputs.step,
                  .samples = inputs.samples,
                  .host = sums_.to_host(),
                  .start = start,
                  .end = nullptr,
                  .replicas = std::exchange(compared_, std::nullopt)};
  pending.end = moment(lane(Lane::compute));
  pending_.push_back(std::move(pending));
  step_end_.record(lane(Lane::compute));
  timer_.end(lane(Lane::compute));
  if (observer_ != nullptr) observer_->end_step();
}

StepOutcome Executor::take_outcome() {
  DSTRAIN_CHECK(!pending_.empty(), "no step is under way");
  if (options_.device.is_cuda()) {
    record_.enter(pending_.front().step, "wait for the device");
    pending_.front().end->synchronize();
  }
  offloader_.rethrow();
  const Pending pending = std::move(pending_.front());
  pending_.pop_front();
  StepOutcome outcome = sums_.outcome(pending.host, pending.samples);
  outcome.step = pending.step;
  outcome.step_s = pending.end->seconds_since(*pending.start);
  outcome.times = timer_.take(pending.step);
  outcome.replicas = pending.replicas;
  return outcome;
}

void Executor::observe(StepObserver* observer) {
  DSTRAIN_CHECK(pending_.empty(), "a step is under way");
  observer_ = observer;
  if (observer == nullptr || observer->keeps_graphs() || graphs_.empty()) return;
  synchronize(options_.device);
  graphs_.clear();
  first_graph_.clear();
  release_cached_memory(options_.device);
}

void Executor::wait(const Prepared& prepared, std::size_t i) {
  const std::vector<Action>& actions = prepared.program->actions;
  const Stream& stream = lane(actions[i].lane);
  const bool timed = in_step(prepared) && actions[i].lane == Lane::compute;
  if (!transfer_threads_.empty()) {
    // A transfer waits on the thread of its lane.
    if (!transfers(actions[i].kind)) wait_for_transfers(prepared, i);
    return;
  }
  for (const int other : actions[i].after) {
    const Event& event = *prepared.events[to_index(other)];
    const Action& awaited = actions[to_index(other)];
    timed ? timer_.wait(event, awaited.lane, !awaited.comm.empty(), stream) : event.wait(stream);
  }
  // Recorded in the run before, or never where this is the first one.
  for (const int other : actions[i].after_previous) {
    const Event& event = *prepared.events[to_index(other)];
    timed ? timer_.wait(event, actions[to_index(other)].lane, false, stream) : event.wait(stream);
  }
}

void Executor::hold_transient_slots(std::size_t i) {
  for (const TransientSlot& slot : transient_slots_) {
    at::Tensor& memory = training_.buffers[to_index(slot.buffer)];
    // The compute lane waits until the slot is empty, or the slot for the compute lane: its
    // allocator may give the memory to whatever that lane does next.
    if (to_index(slot.returned) == i) memory.reset();
    if (to_index(slot.taken) != i) continue;
    const StreamScope scope(lane(Lane::compute));
    memory = offloader_.allocate(training_.program->buffers[to_index(slot.buffer)]);
  }
}

const Batch* Executor::batch_of(const Action& action, const BatchSource& source) const {
  if (action.block < 0) return nullptr;
  return &source.batch(loaded_[to_index(action.micro_batch) % loaded_.size()]);
}

void Executor::run(Prepared& prepared, BatchSource& source, const StepInputs& inputs,
                   const BlockContext& context) {
  const Program& program = *prepared.program;
  const bool training = in_step(prepared);
  if (last_run_ != &program) {
    // Updates of offloaded states go on beside the next step, which this is not.
    if (offloader_.goes_on()) finish_updates();
    for (const Lane other : {Lane::gather, Lane::reduce, Lane::copy_in, Lane::receive_down,
                             Lane::receive_up, Lane::send_down, Lane::send_up})
      step_end_.wait(lane(other));
    for (auto& [name, thread] : transfer_threads_) thread.wait_for_all();
    last_run_ = &program;
  }
  const bool graphs = training && !segments_.empty() &&
                      (observer_ == nullptr || observer_->keeps_graphs()) &&
                      eager_steps_++ >= kEagerSteps;
  const Stream& compute = lane(Lane::compute);
  for (std::size_t i = 0; i < program.actions.size(); ++i) {
    const Action& action = program.actions[i];
    if (rehearsing_ && left_out(prepared, action)) continue;
    const Stream& stream = lane(action.lane);
    const auto segment = graphs ? segment_of_[i] : std::nullopt;
    if (segment && to_index(segments_[*segment].actions.front()) != i) continue;
    // An evaluation has no step of its own: it stands at the one before it.
    record_.enter(training ? inputs.step : record_.get().step.load(), prepared.names[i]);
    std::size_t last = i;
    if (training) {
      const auto phase = kind_row(action.kind).phase;
      if (phase && action.lane == Lane::compute) timer_.enter(*phase, compute);
    }
    if (segment) {
      for (const int member : segments_[*segment].actions) wait(prepared, to_index(member));
    } else {
      wait(prepared, i);
    }
    // On the CPU the waits take time, which is no part of the action.
    if (training && observer_ != nullptr) observer_->begin(i);
    if (segment) {
      replay(*segment, source, inputs);
      last = to_index(segments_[*segment].actions.back());
    } else {
      if (training) hold_transient_slots(i);
      const StreamScope scope(stream);
      // What goes on beside the next step has no end when this one is summed up.
      const bool on_thread = transfers(action.kind) && !options_.device.is_cuda();
      const bool timed = training && !computes(action.lane) && !on_thread &&
                         !(options_.device.is_cuda() && outlasts_step(action.lane));
      if (timed) timer_.begin_action(action.lane, stream);
      if (action.kind == ActionKind::load) {
        const std::size_t buffer = source.load(stream);
        loaded_[to_index(action.micro_batch) % loaded_.size()] = buffer;
        if (action.micro_batch == 0) first_loaded_ = buffer;
      }
      perform(prepared, i, batch_of(action, source), inputs, context);
      prepared.activations.free(action);
      if (timed) timer_.end_action(action.lane, !action.comm.empty(), stream);
    }
    if (training && observer_ != nullptr) observer_->end(i);
    if (prepared.events[last]) prepared.events[last]->record(stream);
  }
}

void Executor::perform(Prepared& prepared, std::size_t i, const Batch* batch,
                       const StepInputs& inputs, const BlockContext& context) {
  const Action& action = prepared.program->actions[i];
  BlockContext of_micro_batch = context;
  if (action.lane == Lane::compute_beside) of_micro_batch.peers = peers_beside_;
  if (pass_of(action.kind) == work::Pass::again) of_micro_batch.mode = Mode::recompute;
  if (&prepared == &training_ && action.block >= 0)
    of_micro_batch.dropout_seed = dropout_seed(action.micro_batch);
  using enum ActionKind;
  switch (action.kind) {
    case load:
      break;
    case discard:
      break;
    case send:
    case receive:
      transfer(prepared, i);
      break;
    case gather:
    case gather_sum:
    case reduce:
    case clear:
    case fetch_parameters:
    case fetch_states:
    case evict_states:
      groups_.run(action, prepared.memory(), inputs.step, lane(action.lane));
      break;
    case release:
      states_.unbind_values(action.group);
      break;
    case forward:
    case recompute:
      blocks_.forward(*prepared.program, action, *batch, of_micro_batch, prepared.activations);
      break;
    case backward:
    case backward_input:
      groups_.bind_gradients(action, cost_.blocks[to_index(action.block)].groups,
                             prepared.memory());
      blocks_.backward(*prepared.program, action, seed_, prepared.activations);
      break;
    case backward_weight:
      groups_.bind_gradients(action, cost_.blocks[to_index(action.block)].groups,
                             prepared.memory());
      BlockRunner::backward_weight(*prepared.program, action, prepared.activations);
      break;
    case norm:
      this->norm(std::get<work::Norm>(action.work.front()), inputs);
      break;
    case update:
      groups_.update(action, prepared.memory(),
                     {.learning = inputs.lr, .average_share = inputs.average_share},
                     sums_.control(), lane(action.lane));
      break;
    case fetch_input:
    case evict_input:
      move_input(prepared, action);
      break;
  }
}

/// Each is a pure function of the run's seed, the step and the micro-batch's place in the global
/// batch: the same for any number of ranks that share it evenly.
void Executor::set_dropout_seeds(std::int64_t step) {
  if (!dropout_seeds_.defined()) return;
  const std::uint64_t key =
      random_key(static_cast<std::uint64_t>(options_.seed), RandomStream::dropout);
  const at::Tensor host = host_tensor(dropout_seeds_.sizes(), at::kLong, options_.device);
  auto* seeds = host.mutable_data_ptr<std::int64_t>();
  for (std::int64_t m = 0; m < dropout_seeds_.numel(); ++m) {
    const std::int64_t place = m * data_ranks_ + options_.data_rank;
    const Philox random =
        Philox::at(key, static_cast<std::uint64_t>(step), static_cast<std::uint64_t>(place));
    seeds[m] = static_cast<std::int64_t>(std::uint64_t{random.word[1]} << 32 | random.word[0] | 1);
  }
  copy_beside(dropout_seeds_, host);  // not behind states that travel
}

at::Tensor Executor::dropout_seed(int micro_batch) const {
  return dropout_seeds_.defined() ? dropout_seeds_.select(0, micro_batch) : at::Tensor();
}

void Executor::norm(const work::Norm& norm, const StepInputs& inputs) {
  groups_.add_squares(norm, training_.memory(), sums_.sums());
  sums_.request(inputs.requests);
  const Stream& compute = lane(Lane::compute);
  timer_.begin_action(Lane::compute, compute);
  sums_.add_over(communicator(kWorldChannel));
  timer_.end_action(Lane::compute, communicator(kWorldChannel).size() > 1, compute);
  // All forwards have read what was gathered, and no update has begun.
  if (inputs.before_update) inputs.before_update();
  if (inputs.replicas != nullptr) compared_ = inputs.replicas->compare(communicator(kWorldChannel));
  const LossScaleConfig& scale = options_.precision.loss_scale;
  optimizer::finish_gradients(
      sums_.control(), sums_.sums(),
      {.clip_norm = options_.optimizer.clip_norm,
       .loss_scaling = {.dynamic = options_.compute == at::kHalf && scale.fixed == 0,
                        .growth_interval = scale.growth_interval,
                        .hysteresis = scale.hysteresis,
                        .consecutive = scale.consecutive,
                        .minimum = static_cast<float>(scale.minimum)},
       .beta1 = options_.optimizer.betas[0],
       .beta2 = options_.optimizer.betas[1]});
  const at::Tensor skip = sums_.control().select(0, optimizer::kSkip);
  running_states_.apply(skip, inputs.samples * model_.frames);
  if (inputs.average_share > 0) states_.average_block_states(inputs.average_share, skip);
  offloader_.copy_control(sums_.control());
}

}  // namespace dstrain
