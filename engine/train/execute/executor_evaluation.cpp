#include <ATen/TensorOperators.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "engine/base/index.h"
#include "engine/report/confusion.h"
#include "engine/train/execute/executor.h"
#include "engine/train/measure/step_totals.h"

/// What the executor does between training steps.
namespace dstrain {
namespace {

/// One batch that lies on the device already.
class FixedBatch final : public BatchSource {
 public:
  explicit FixedBatch(const Batch& only) : batch_(only) {}
  std::size_t load(const Stream&) override { return 0; }
  [[nodiscard]] const Batch& batch(std::size_t) const override { return batch_; }

 private:
  const Batch& batch_;
};

/// Adds each sample of `batch` to `counts` [classes, classes] int64, by its `scores`.
void count_classes(const at::Tensor& scores, const Batch& batch, at::Tensor& counts) {
  // The first of equal scores is the prediction, as top-1 has it. Fillers have weight 0.
  const at::Tensor places = batch.labels * counts.size(0) + scores.argmax(1);
  counts.view({-1}).index_add_(0, places, batch.weights.to(at::kLong));
}

}  // namespace

void Executor::finish_updates() {
  synchronize(options_.device);
  offloader_.rethrow();
  // Nothing is in them, and what comes next may need the memory.
  for (const TransientSlot& slot : transient_slots_)
    training_.buffers[to_index(slot.buffer)].reset();
}

void Executor::evaluate_each(BatchSource& source, std::int64_t micro_batches,
                             const BlockContext& context,
                             const std::function<void(std::int64_t)>& each) {
  gather_resident();
  std::array<Event, 2> done = {Event(options_.device), Event(options_.device)};
  for (std::int64_t i = 0; i < micro_batches; ++i) {
    // The host stays at most two micro-batches ahead, or all their inputs would be in pinned memory
    // at once.
    Event& two_ago = done[to_index(static_cast<int>(i % 2))];
    two_ago.synchronize();
    {
      const StreamScope scope(lane(Lane::compute));
      context_.totals.zero_();
      if (context_.pair_figures.defined()) context_.pair_figures.zero_();
    }
    run(evaluation_, source, {}, context);
    {
      const StreamScope scope(lane(Lane::compute));
      each(i);
    }
    step_end_.record(lane(Lane::compute));
    two_ago.record(lane(Lane::compute));
  }
}

EvaluationTotals Executor::evaluate(BatchSource& source, std::int64_t micro_batches) {
  at::Tensor sums;  // in double: a split may have more samples than fp32 has steps
  at::Tensor counts;
  BlockContext context = evaluation_context_;
  const std::int64_t figures = num_figures();
  {
    const StreamScope scope(lane(Lane::compute));
    const auto on_device = context_.totals.options();
    sums = at::zeros({kNumTotals + figures}, on_device.dtype(at::kDouble));
    if (model_.classes > 0 && model_.classes <= report::Confusion::kMaxClasses)
      counts = at::zeros({model_.classes, model_.classes}, on_device.dtype(at::kLong));
    if (counts.defined() && has_head())
      context.class_scores = at::zeros({samples_, model_.classes}, on_device);
  }
  evaluate_each(source, micro_batches, context, [&](std::int64_t) {
    sums.narrow(0, 0, kNumTotals).add_(context_.totals);
    if (figures > 0) sums.narrow(0, kNumTotals, figures).add_(context_.pair_figures);
    if (context.class_scores.defined())
      count_classes(context.class_scores, source.batch(first_loaded_), counts);
  });
  const StreamScope scope(lane(Lane::compute));
  communicator(kWorldChannel).all_reduce(sums, ReduceOp::sum);
  if (counts.defined()) communicator(kWorldChannel).all_reduce(counts, ReduceOp::sum);
  const at::Tensor host = sums.cpu();
  offloader_.rethrow();  // what was fetched in vain
  const auto* values = host.const_data_ptr<double>();
  EvaluationTotals totals = means(values);
  if (counts.defined() && std::isfinite(totals.loss)) totals.confusion = counts.cpu();
  if (figures > 0) totals.pairs = pair_means(values + kNumTotals, totals.targets);
  return totals;
}

at::Tensor Executor::answer_logps(BatchSource& source, std::int64_t micro_batches,
                                  const std::function<void(std::int64_t)>& tell) {
  BlockContext context = evaluation_context_;
  context.keep_hidden = context_.keep_hidden;  // rows in chunks as in training: the same bits
  at::Tensor all;
  {
    const StreamScope scope(lane(Lane::compute));
    all = at::zeros({micro_batches, samples_, 2}, context_.totals.options());
    context.answer_logps = at::zeros({samples_, 2}, context_.totals.options());
  }
  evaluate_each(source, micro_batches, context, [&](std::int64_t i) {
    all.select(0, i).copy_(context.answer_logps);
    tell(i + 1);
  });
  const StreamScope scope(lane(Lane::compute));
  const at::Tensor host = all.cpu();
  offloader_.rethrow();
  return host;
}

bool Executor::has_head() const {
  const int head = static_cast<int>(model_.blocks.size()) - 1;
  const Communicator* tensor = evaluation_context_.peers.along(Axis::tensor);
  return (tensor == nullptr || tensor->rank() == 0) &&
         std::ranges::any_of(evaluation_.program->actions, [&](const Action& action) {
           return pass_of(action.kind) == work::Pass::forward && action.block == head;
         });
}

EvaluationTotals Executor::evaluate_average(BatchSource& source, std::int64_t micro_batches) {
  finish_updates();
  states_.take_average();
  const EvaluationTotals totals = evaluate(source, micro_batches);
  finish_updates();
  states_.give_back_average();
  return totals;
}

BlockContext Executor::generation_context(const at::Tensor& last) const {
  synchronize(options_.device);
  BlockContext context = evaluation_context_;
  context.mode = Mode::generate;
  context.next_tokens = last.to(options_.device, at::kLong, /*non_blocking=*/false, /*copy=*/true);
  synchronize(options_.device);
  return context;
}

void Executor::rehearse_next_tokens(const Batch& batch, const at::Tensor& last) {
  FixedBatch source(batch);
  const BlockContext context = generation_context(last);
  gather_resident();
  rehearse(evaluation_, source, {}, context);
}

at::Tensor Executor::next_tokens(const Batch& batch, const at::Tensor& last) {
  FixedBatch source(batch);
  const BlockContext context = generation_context(last);
  gather_resident();
  run(evaluation_, source, {}, context);
  finish_updates();
  return context.next_tokens.cpu();
}

void Executor::gather_resident() {
  if (gathering_.program->actions.empty()) return;
  // Updates of offloaded states outlast the step.
  if (offloader_.goes_on()) finish_updates();
  step_end_.wait(lane(Lane::gather));
  for (std::size_t i = 0; i < gathering_.program->actions.size(); ++i) {
    record_.enter(record_.get().step.load(), gathering_.names[i]);
    const StreamScope scope(lane(Lane::gather));
    perform(gathering_, i, nullptr, {}, evaluation_context_);
  }
  step_end_.record(lane(Lane::gather));
  step_end_.wait(lane(Lane::compute));
}

}  // namespace dstrain
