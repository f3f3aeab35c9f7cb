#include <ATen/core/Tensor.h>

#include <cmath>
#include <utility>

#include "engine/base/error.h"
#include "engine/data/order.h"
#include "engine/recipe/axes.h"
#include "engine/train/execute/compute_type.h"
#include "engine/train/session/cached_answers.h"
#include "engine/train/session/session.h"

/// What a session does with the test split.
namespace dstrain {

std::int64_t Session::test_size() const {
  std::int64_t size = 0;
  for (const auto& test : tests_) size += test->size();
  return size;
}

std::int64_t Session::test_micro_batches(const Dataset& test) const {
  return reading_options(test.size()).last_step;
}

LoaderOptions Session::reading_options(std::int64_t samples) const {
  const std::int64_t together = std::int64_t{recipe_.batch.micro} * strategy_->batch.data_ranks;
  return {.global_batch = together,
          .micro_batch = recipe_.batch.micro,
          .data_ranks = strategy_->batch.data_ranks,
          .data_rank = data_rank_,
          .sequence = own_tokens(),
          .seed = recipe_.run.seed,
          .shuffle = false,
          .pinned = device_.is_cuda(),
          .workers = recipe_.data.workers,
          .prefetch = recipe_.data.prefetch,
          .last_step = dstrain::steps_per_epoch(samples, together)};
}

std::unique_ptr<Feeder> Session::test_feeder(const std::shared_ptr<const Dataset>& test) const {
  return std::make_unique<Feeder>(make_loader(test, reading_options(test->size())),
                                  feeder_options(false));
}

namespace {

/// Means over all targets.
EvaluationTotals joined(std::vector<EvaluationTotals> members) {
  EvaluationTotals all;
  const auto add = [](double& sum, double value, double targets) { sum += value * targets; };
  for (const EvaluationTotals& one : members) {
    all.targets += one.targets;
    add(all.loss, one.loss, one.targets);
    add(all.top1, one.top1, one.targets);
    add(all.top5, one.top5, one.targets);
    if (one.confusion.defined())
      all.confusion = all.confusion.defined() ? all.confusion.add(one.confusion) : one.confusion;
  }
  all.loss /= all.targets;
  all.top1 /= all.targets;
  all.top5 /= all.targets;
  if (!std::isfinite(all.loss)) all.confusion.reset();
  all.members = std::move(members);
  return all;
}

}  // namespace

EvaluationTotals Session::evaluate() {
  DSTRAIN_CHECK(!tests_.empty(), "run.evaluate is never");
  std::vector<EvaluationTotals> each;
  for (const auto& test : tests_)
    each.push_back(executor_->evaluate(*test_feeder(test), test_micro_batches(*test)));
  return mixture() == nullptr ? each.front() : joined(std::move(each));
}

std::optional<EvaluationTotals> Session::evaluate_average() {
  if (recipe_.ema.decay == 0) return std::nullopt;
  std::vector<EvaluationTotals> each;
  for (const auto& test : tests_)
    each.push_back(executor_->evaluate_average(*test_feeder(test), test_micro_batches(*test)));
  return mixture() == nullptr ? each.front() : joined(std::move(each));
}

int Session::first_rank_with_head() const {
  const Stages& stages = strategy_->layout.stages;
  const int last = static_cast<int>(model_.blocks.size()) - 1;
  return stages.rank_of(last) * (strategy_->mesh.world_size() / stages.ranks());
}

bool Session::has_whole_weights() const {
  if (product(given_degrees(recipe_.parallel), kAllAxes) > 1) return false;
  for (int group = 0; group < static_cast<int>(groups_.size()); ++group)
    if (!states_->resident_parameters(group).defined()) return false;
  return recipe_.precision.compute != ComputeType::fp8;
}

std::vector<GeneratedAnswer> Session::generate() {
  if (prompts_.empty()) return {};
  Communicator& world = communicators_.at(kWorldChannel);
  const GenerateOptions options = {.device = device_.device,
                                   .speaker = first_rank_with_head(),
                                   .micro_batch = recipe_.batch.micro,
                                   .sequence = model_.sequence,
                                   .own = own_tokens(),
                                   .max_tokens = recipe_.run.generate_tokens,
                                   .rehearse = rehearsed_ && !std::exchange(answered_, true)};
  if (keeps_keys_) {
    // A pass brings what other ranks have updated.
    if (world.size() > 1) pass_of_nothing(*executor_, options);
    executor_->finish_updates();
    if (auto answers = cached_answers(model_, scalar_type(recipe_.precision.compute), world,
                                      prompts_, *tokenizer_, options))
      return *std::move(answers);
    keeps_keys_ = false;  // on all ranks
  }
  return dstrain::generate(*executor_, world, prompts_, *tokenizer_, options);
}

}  // namespace dstrain
