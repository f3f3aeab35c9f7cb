#include <ATen/ops/zeros.h>

#include <array>

#include "engine/base/index.h"
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

}  // namespace

void Executor::finish_updates() {
  synchronize(options_.device);
  offloader_.rethrow();
}

EvaluationTotals Executor::evaluate(BatchSource& source, std::int64_t micro_batches) {
  at::Tensor sums;  // in double: a split may have more samples than fp32 has steps
  {
    const StreamScope scope(lane(Lane::compute));
    sums = at::zeros({kNumTotals}, context_.totals.options().dtype(at::kDouble));
  }
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
    }
    run(evaluation_, source, {}, evaluation_context_);
    {
      const StreamScope scope(lane(Lane::compute));
      sums.add_(context_.totals);
    }
    step_end_.record(lane(Lane::compute));
    two_ago.record(lane(Lane::compute));
  }
  const StreamScope scope(lane(Lane::compute));
  communicator(kWorldChannel).all_reduce(sums, ReduceOp::sum);
  const at::Tensor host = sums.cpu();
  offloader_.rethrow();  // what was fetched in vain
  return means(host.const_data_ptr<double>());
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
  if (layout_.chunk > 0) finish_updates();
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
