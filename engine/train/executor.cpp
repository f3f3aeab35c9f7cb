#include "engine/train/executor.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/philox.h"
#include "engine/device/pinned.h"
#include "engine/kernels/optimizer.h"

namespace dstrain {
namespace {

constexpr std::int64_t kTotals = 1;  ///< after the sum of squares
constexpr std::int64_t kStopVotes = kTotals + kNumTotals;
constexpr std::int64_t kNumSums = kStopVotes + 1;

constexpr std::int64_t kEagerSteps = 3;  ///< until handles, plans and tuned products are there

/// The point that `stream` has been given work up to, with its time.
std::shared_ptr<const Event> moment(const Stream& stream) {
  auto event = std::make_shared<Event>(stream.device(), Event::Timing::yes);
  event->record(stream);
  return event;
}

/// From sums in the order of kNumTotals. Beside a loss that is not finite, shares say nothing: nan.
template <typename Number>
EvaluationTotals means(const Number* totals) {
  const double targets = std::max(1.0, static_cast<double>(totals[3]));
  double loss = static_cast<double>(totals[0]) / targets;
  if (std::isnan(loss)) loss = std::numeric_limits<double>::quiet_NaN();  // never "-nan"
  const auto share = [&](Number count) {
    return std::isfinite(loss) ? static_cast<double>(count) / targets
                               : std::numeric_limits<double>::quiet_NaN();
  };
  return {.loss = loss,
          .top1 = share(totals[1]),
          .top5 = share(totals[2]),
          .targets = static_cast<double>(totals[3])};
}

/// Buffers that serve two programs in turn.
std::vector<at::Tensor> make_slots(const std::vector<std::int64_t>& a,
                                   const std::vector<std::int64_t>& b,
                                   const at::TensorOptions& options) {
  std::vector<at::Tensor> slots;
  for (std::size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    const std::int64_t elements = std::max(i < a.size() ? a[i] : 0, i < b.size() ? b[i] : 0);
    slots.push_back(at::zeros({elements}, options));
  }
  return slots;
}

}  // namespace

Executor::Executor(Model& model, const ModelCost& cost, const Layout& layout,
                   const Program& training, const Program& evaluation, StateStore& states,
                   Communicators& communicators, const ExecutorOptions& options,
                   RankRecordFile& record)
    : model_(model),
      cost_(cost),
      layout_(layout),
      states_(states),
      communicators_(communicators),
      options_(options),
      record_(record),
      training_(prepare(training)),
      evaluation_(prepare(evaluation)),
      step_end_(options.device),
      pace_(options.device, record) {
  for (int name = 0; name < kNumLanes; ++name) {
    // Communication is short and others wait for it; compute is long.
    const bool urgent = static_cast<Lane>(name) != Lane::compute;
    lanes_.push_back(
        Stream::from_pool(options.device, urgent ? StreamPriority::high : StreamPriority::normal));
  }
  const auto fp32 = at::TensorOptions().dtype(at::kFloat).device(options.device);
  gather_slots_ =
      make_slots(training.gather_slots, evaluation.gather_slots, fp32.dtype(options.compute));
  gradient_slots_ = make_slots(training.gradient_slots, evaluation.gradient_slots, fp32);
  std::int64_t largest_shard = 0;
  std::int64_t largest_group = 0;
  for (int g = 0; g < static_cast<int>(layout.flat.size()); ++g) {
    if (!layout.groups[to_index(g)].trainable) continue;
    if (layout.reduced_from_slot(g))
      largest_shard = std::max(largest_shard, layout.flat[to_index(g)].shard_size());
    largest_group = std::max(largest_group, layout.flat[to_index(g)].padded());
  }
  if (!training.gradient_slots.empty() && training.micro_batches > 1)
    staging_ = at::empty({largest_shard}, fp32);
  const bool reduces = layout.shard_degree > 1 || layout.replica_degree > 1;
  if (reduces && options.precision.reduce == ReduceType::bf16) {
    wire_ = at::empty({largest_group}, fp32.dtype(at::kBFloat16));
  }
  telemetry_ = at::zeros({kNumSums + optimizer::kControlSize}, fp32);
  sums_ = telemetry_.narrow(0, 0, kNumSums);
  control_ = telemetry_.narrow(0, kNumSums, optimizer::kControlSize);
  objective_.label_smoothing = options.optimizer.label_smoothing;
  objective_.totals = sums_.narrow(0, kTotals, kNumTotals);
  evaluation_objective_.totals = objective_.totals;
  seed_ = at::zeros({}, fp32);
  inputs_.resize(model.blocks.size());
  outputs_.resize(model.blocks.size());
  set_control(
      {.loss_scale = options.compute == at::kHalf ? options.precision.loss_scale.initial : 1.0});
}

void Executor::set_control(const ControlState& state) {
  using namespace optimizer;
  const at::Tensor host = at::zeros({kControlSize}, at::kFloat);
  auto* values = host.mutable_data_ptr<float>();
  values[kLossScale] = static_cast<float>(state.loss_scale);
  values[kGoodSteps] = static_cast<float>(state.good_steps);
  values[kAppliedSteps] = static_cast<float>(state.applied_steps);
  values[kSkippedSteps] = static_cast<float>(state.skipped_steps);
  control_.copy_(host);
  synchronize(options_.device);
}

Executor::Prepared Executor::prepare(const Program& program) const {
  Prepared prepared;
  prepared.program = &program;
  const std::size_t size = program.actions.size();
  prepared.events.resize(size);
  prepared.last_use.resize(size);
  prepared.first_backward = static_cast<int>(model_.blocks.size());
  prepared.keeps.resize(model_.blocks.size());
  std::vector<bool> recomputed(model_.blocks.size());
  std::vector<std::size_t> last(to_index(program.micro_batches), size);
  for (std::size_t i = 0; i < size; ++i) {
    const Action& action = program.actions[i];
    prepared.names.push_back(describe(action, cost_));
    for (const int earlier : action.after) {
      auto& event = prepared.events[to_index(earlier)];
      if (!event) event.emplace(options_.device);
    }
    if (action.block >= 0) last[to_index(action.micro_batch)] = i;
    if (action.kind == ActionKind::recompute) recomputed[to_index(action.block)] = true;
    if (action.kind == ActionKind::backward) {
      prepared.first_backward = std::min(prepared.first_backward, action.block);
      prepared.keeps[to_index(action.block)] = !recomputed[to_index(action.block)];
    }
  }
  for (const std::size_t i : last) prepared.last_use.at(i) = true;
  return prepared;
}

void Executor::enqueue(const StepInputs& inputs, BatchSource& source) {
  // What the last step updated is read by the lanes that start this one.
  step_end_.wait(lane(Lane::gather));
  step_end_.wait(lane(Lane::reduce));
  const std::shared_ptr<const Event> start =
      pending_.empty() ? moment(lane(Lane::compute)) : pending_.back().end;
  pace_.begin(lane(Lane::compute));
  {
    const StreamScope scope(lane(Lane::compute));
    sums_.zero_();
    seed_.copy_(at::div(control_.select(0, optimizer::kLossScale),
                        std::max(1.0, static_cast<double>(inputs.targets))));
  }
  run(training_, source, inputs, objective_, /*gather_resident=*/true);
  const StreamScope scope(lane(Lane::compute));
  Pending pending{.step = inputs.step,
                  .host = host_tensor({telemetry_.numel()}, at::kFloat, options_.device),
                  .start = start,
                  .end = nullptr};
  pending.host.copy_(telemetry_, /*non_blocking=*/true);
  pending.end = moment(lane(Lane::compute));
  pending_.push_back(std::move(pending));
  step_end_.record(lane(Lane::compute));
  pace_.end(lane(Lane::compute));
}

StepOutcome Executor::take_outcome() {
  DSTRAIN_CHECK(!pending_.empty(), "no step is under way");
  if (options_.device.is_cuda()) {
    record_.enter(pending_.front().step, "wait for the device");
    pending_.front().end->synchronize();
    pace_.settle();
  }
  const Pending pending = std::move(pending_.front());
  pending_.pop_front();
  const auto* sums = pending.host.const_data_ptr<float>();
  const float* control = sums + kNumSums;
  const EvaluationTotals totals = means(sums + kTotals);
  return {.step = pending.step,
          .step_s = pending.end->seconds_since(*pending.start),
          .loss = totals.loss,
          .top1 = totals.top1,
          .top5 = totals.top5,
          .targets = totals.targets,
          .gradient_norm = control[optimizer::kGradientNorm],
          .loss_scale = control[optimizer::kLossScale],
          .good_steps = control[optimizer::kGoodSteps],
          .applied_steps = control[optimizer::kAppliedSteps],
          .skipped_steps = control[optimizer::kSkippedSteps],
          .skipped = control[optimizer::kSkip] != 0,
          .stop = sums[kStopVotes] > 0};
}

EvaluationTotals Executor::evaluate(BatchSource& source, std::int64_t micro_batches) {
  at::Tensor sums;  // in double: a split may have more samples than fp32 has steps
  {
    const StreamScope scope(lane(Lane::compute));
    sums = at::zeros({kNumTotals}, objective_.totals.options().dtype(at::kDouble));
  }
  std::array<Event, 2> done = {Event(options_.device), Event(options_.device)};
  for (std::int64_t i = 0; i < micro_batches; ++i) {
    // The host stays at most two micro-batches ahead, or all their inputs would be in pinned memory
    // at once.
    Event& two_ago = done[to_index(static_cast<int>(i % 2))];
    two_ago.synchronize();
    // A program starts when the one before it has ended: its first gathers overwrite slots that
    // were in use.
    step_end_.wait(lane(Lane::gather));
    {
      const StreamScope scope(lane(Lane::compute));
      objective_.totals.zero_();
    }
    run(evaluation_, source, {}, evaluation_objective_, /*gather_resident=*/i == 0);
    {
      const StreamScope scope(lane(Lane::compute));
      sums.add_(objective_.totals);
    }
    step_end_.record(lane(Lane::compute));
    two_ago.record(lane(Lane::compute));
  }
  const StreamScope scope(lane(Lane::compute));
  communicators_.batch->all_reduce(sums, ReduceOp::sum);
  return means(sums.cpu().const_data_ptr<double>());
}

at::Tensor Executor::next_tokens(const Batch& batch, const at::Tensor& last) {
  /// One batch that lies on the device already.
  struct Fixed final : BatchSource {
    explicit Fixed(const Batch& only) : batch_(only) {}
    std::size_t load(const Stream&) override { return 0; }
    [[nodiscard]] const Batch& batch(std::size_t) const override { return batch_; }
    void used(std::size_t, const Stream&) override {}
    const Batch& batch_;
  };
  Fixed source(batch);
  synchronize(options_.device);
  Objective objective = evaluation_objective_;
  objective.next_tokens =
      last.to(options_.device, at::kLong, /*non_blocking=*/false, /*copy=*/true);
  synchronize(options_.device);
  run(evaluation_, source, {}, objective, /*gather_resident=*/true);
  synchronize(options_.device);
  return objective.next_tokens.cpu();
}

at::Tensor Executor::gathered_master(int group) {
  synchronize(options_.device);
  const StreamScope scope(lane(Lane::gather));
  at::Tensor whole = states_.master(group);
  if (whole.numel() != states_.flat(group).padded()) {
    const at::Tensor own = whole;
    whole = at::empty({states_.flat(group).padded()}, own.options());
    communicators_.gather->all_gather(whole, own);
  }
  return whole.to(at::kCPU, at::kFloat);
}

void Executor::run(Prepared& prepared, BatchSource& source, const StepInputs& inputs,
                   const Objective& objective, bool gather_resident) {
  const Program& program = *prepared.program;
  const bool training = &prepared == &training_;
  std::size_t i = 0;
  if (training && options_.graphs && eager_steps_++ >= kEagerSteps) i = replay(source, inputs);
  for (; i < program.actions.size(); ++i) {
    const Action& action = program.actions[i];
    const Stream& stream = lane(action.lane);
    // An evaluation has no step of its own: it stands at the one before it.
    record_.enter(training ? inputs.step : record_.get().step.load(), prepared.names[i]);
    for (const int earlier : action.after) {
      const Event& event = *prepared.events[to_index(earlier)];
      const Lane other = program.actions[to_index(earlier)].lane;
      const bool communicated = other == Lane::gather || other == Lane::reduce;
      if (training && communicated && action.lane == Lane::compute) {
        pace_.wait(event, stream);
      } else {
        event.wait(stream);
      }
    }
    const StreamScope scope(stream);
    auto& buffer = buffer_[to_index(std::max(0, action.micro_batch)) % 2];
    if (action.kind == ActionKind::load) buffer = source.load(stream);
    perform(prepared, i, action.block >= 0 ? &source.batch(buffer) : nullptr, inputs, objective,
            gather_resident);
    if (after_forward_ && action.kind == ActionKind::forward) after_forward_(action.block);
    if (prepared.events[i]) prepared.events[i]->record(stream);
    if (prepared.last_use[i]) source.used(buffer, stream);
  }
}

std::size_t Executor::replay(BatchSource& source, const StepInputs& inputs) {
  const std::vector<Action>& actions = training_.program->actions;
  const auto end = std::ranges::find(actions, ActionKind::norm, &Action::kind);
  const auto norm = static_cast<std::size_t>(end - actions.begin());
  const Stream &compute = lane(Lane::compute), &copy_in = lane(Lane::copy_in);
  record_.enter(inputs.step, "forward and backward");
  const std::size_t buffer = source.load(copy_in);
  Event loaded(options_.device);
  loaded.record(copy_in);
  loaded.wait(compute);
  Graph& graph = graphs_.at(buffer);
  if (!graph.captured()) {
    synchronize(options_.device);
    release_cached_memory(options_.device);  // or eager and captured memory would both be held
    graph.capture(
        compute,
        [&] {
          for (std::size_t i = 0; i < norm; ++i) {
            if (actions[i].kind == ActionKind::load) continue;
            perform(training_, i, actions[i].block >= 0 ? &source.batch(buffer) : nullptr, inputs,
                    objective_, false);
          }
          for (int g = 0; g < static_cast<int>(states_.num_groups()); ++g) {
            if (states_.trainable(g)) states_.settle_gradients(g);
          }
        },
        &graphs_.at(1 - buffer));
  }
  graph.replay(compute);
  source.used(buffer, compute);
  return norm;
}

void Executor::perform(Prepared& prepared, std::size_t i, const Batch* batch,
                       const StepInputs& inputs, const Objective& objective, bool gather_resident) {
  const Action& action = prepared.program->actions[i];
  Objective of_micro_batch = objective;
  if (&prepared == &training_ && action.block >= 0)
    of_micro_batch.dropout_seed = dropout_seed(inputs.step, action.micro_batch);
  using enum ActionKind;
  switch (action.kind) {
    case load:
      break;
    case gather:
      if (action.slot >= 0 || gather_resident) this->gather(action);
      break;
    case release:
      states_.unbind_values(action.group);
      break;
    case forward:
      this->forward(action, *batch, of_micro_batch, prepared.keeps[to_index(action.block)]);
      // The next block has a reference of its own; only what was kept for backward stays.
      if (action.block > 0 && !prepared.keeps[to_index(action.block) - 1])
        outputs_[to_index(action.block) - 1].clear();
      if (action.block < prepared.first_backward) inputs_[to_index(action.block)].clear();
      break;
    case recompute:
      this->forward(action, *batch, of_micro_batch, true);
      break;
    case clear:
      states_.bind_empty_gradients(action.group, whole_gradient(action));
      break;
    case backward:
      this->backward(action);
      break;
    case reduce:
      this->reduce(action);
      break;
    case norm:
      this->norm(inputs);
      break;
    case update:
      this->update(action.group, inputs.lr);
      break;
  }
}

/// A pure function of the run's seed, the step and the micro-batch's place in the global batch: the
/// same for any number of ranks that share it evenly, and when a block is computed again.
std::uint64_t Executor::dropout_seed(std::int64_t step, int micro_batch) const {
  const std::int64_t place = options_.data_rank * training_.program->micro_batches + micro_batch;
  const std::uint64_t key =
      random_key(static_cast<std::uint64_t>(options_.seed), RandomStream::dropout);
  const Philox random =
      Philox::at(key, static_cast<std::uint64_t>(step), static_cast<std::uint64_t>(place));
  return std::uint64_t{random.word[1]} << 32 | random.word[0] | 1;  // 0 would mean none
}

void Executor::gather(const Action& action) {
  const at::Tensor own = states_.own_parameters(action.group);
  if (action.slot < 0) {
    at::Tensor whole = states_.resident_parameters(action.group);
    communicators_.gather->all_gather(whole, own);
    return;
  }
  at::Tensor whole =
      gather_slots_[to_index(action.slot)].narrow(0, 0, states_.flat(action.group).padded());
  communicators_.gather->all_gather(whole, own);
  states_.bind_values(action.group, whole);
}

void Executor::forward(const Action& action, const Batch& batch, const Objective& objective,
                       bool keep) {
  const std::size_t block = to_index(action.block);
  if (action.kind == ActionKind::forward) {
    inputs_[block].clear();
    if (block > 0) {
      for (const at::Tensor& tensor : outputs_[block - 1])
        inputs_[block].push_back(tensor.detach());
    }
  }
  Tensors inputs = inputs_[block];
  if (keep) {
    for (at::Tensor& tensor : inputs) tensor.requires_grad_(true);
  }
  // A recomputation must not count its samples a second time; only the head counts, and it is never
  // recomputed.
  const at::AutoGradMode mode(keep);
  outputs_[block] = model_.blocks[block]->forward(inputs, batch, objective);
}

void Executor::backward(const Action& action) {
  const std::size_t block = to_index(action.block);
  Tensors seeds = std::move(output_gradients_);
  if (block + 1 == model_.blocks.size()) {
    seeds = {seed_};
  }
  if (inputs_[block].empty()) {
    torch::autograd::backward(outputs_[block], seeds);
    output_gradients_.clear();
  } else {
    output_gradients_ = torch::autograd::grad(outputs_[block], inputs_[block], seeds);
  }
  outputs_[block].clear();
  inputs_[block].clear();
}

at::Tensor Executor::whole_gradient(const Action& action) const {
  if (action.slot < 0) return states_.resident_gradient(action.group);
  return gradient_slots_[to_index(action.slot)].narrow(0, 0, states_.flat(action.group).padded());
}

void Executor::reduce(const Action& action) {
  const int group = action.group;
  const at::Tensor whole = whole_gradient(action);
  states_.settle_gradients(group);
  const at::Tensor own = states_.own_gradient(group);
  const bool sharded = layout_.shard_degree > 1;
  const bool accumulate = action.slot >= 0 && action.micro_batch > 0;
  const at::Tensor sent = wire_.defined() ? wire_.narrow(0, 0, whole.numel()).copy_(whole) : whole;
  at::Tensor part = sent;
  if (sharded) {
    const Range shard = states_.flat(group).shard(communicators_.reduce->rank());
    part = wire_.defined() ? sent.narrow(0, shard.begin, shard.size())
           : accumulate    ? staging_.narrow(0, 0, shard.size())
                           : own;
    communicators_.reduce->reduce_scatter(part, sent);
  }
  if (layout_.replica_degree > 1) communicators_.replica->all_reduce(part, ReduceOp::sum);
  if (accumulate) {
    own.add_(part);
  } else if (wire_.defined()) {
    own.copy_(part);
  }
}

void Executor::norm(const StepInputs& inputs) {
  const double share = 1.0 / layout_.replica_degree;
  for (int g = 0; g < static_cast<int>(states_.num_groups()); ++g) {
    if (!states_.trainable(g)) continue;
    states_.settle_gradients(g);
    optimizer::add_squares(states_.own_gradient(g), share, sums_);
  }
  if (inputs.stop) sums_.select(0, kStopVotes).fill_(1);
  communicators_.batch->all_reduce(sums_, ReduceOp::sum);
  optimizer::finish_gradients(control_, sums_,
                              {.clip_norm = options_.optimizer.clip_norm,
                               .dynamic_loss_scale = options_.compute == at::kHalf,
                               .growth_interval = options_.precision.loss_scale.growth_interval});
}

/// One launch per range of equal weight decay that this rank owns a part of.
void Executor::update(int group, double lr) {
  const Range own = states_.own_range(group);
  for (const auto& [range, decay] : states_.decay_ranges(group)) {
    const Range part = intersect(own, range);
    if (!part.empty()) update(group, {part.begin - own.begin, part.end - own.begin}, decay, lr);
  }
}

void Executor::update(int group, Range part, bool decay, double lr) {
  const OptimizerConfig& config = options_.optimizer;
  const auto view = [&](const at::Tensor& own) { return own.narrow(0, part.begin, part.size()); };
  const at::Tensor master = view(states_.master(group));
  const at::Tensor compute =
      options_.compute == at::kFloat ? at::Tensor() : view(states_.own_parameters(group));
  const double weight_decay = decay ? config.weight_decay : 0;
  const Range own = states_.own_range(group);
  // Each group has random bits of its own.
  const std::uint64_t seed = static_cast<std::uint64_t>(options_.seed) ^
                             (0x9E3779B97F4A7C15ULL * static_cast<std::uint64_t>(group + 1));
  if (config.name == OptimizerName::adamw) {
    optimizer::adamw({.master = master,
                      .exp_avg = view(states_.moment(group, 0)),
                      .exp_avg_sq = view(states_.moment(group, 1)),
                      .gradient = view(states_.own_gradient(group)),
                      .compute = compute,
                      .lr = lr,
                      .beta1 = config.betas[0],
                      .beta2 = config.betas[1],
                      .eps = config.eps,
                      .weight_decay = weight_decay,
                      .seed = seed,
                      .first_element = own.begin + part.begin},
                     control_);
  } else {
    optimizer::sgd({.master = master,
                    .momentum_buffer = view(states_.moment(group, 0)),
                    .gradient = view(states_.own_gradient(group)),
                    .compute = compute,
                    .lr = lr,
                    .momentum = config.momentum,
                    .weight_decay = weight_decay,
                    .seed = seed,
                    .first_element = own.begin + part.begin},
                   control_);
  }
}

}  // namespace dstrain
