#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/comm/thread_world.h"
#include "engine/nn/block_state.h"
#include "engine/nn/linear.h"
#include "engine/train/execute/executor.h"

/// A small model with running statistics, its data, and all that one rank needs to run it through
/// an Executor, without session, recipe file and data set.
namespace dstrain::test {

inline constexpr std::int64_t kFeatures = 6, kWidth = 8, kClasses = 3;

/// Linear map and batch norm over the valid samples of one micro-batch of all data ranks (Ioffe &
/// Szegedy 2015, arXiv:1502.03167), without scale and shift, in plain operators.
class NormLayer final : public Block {
 public:
  NormLayer();
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::vector<Parameter*> parameters() override;
  [[nodiscard]] std::vector<BlockState*> state() override { return {&mean_, &variance_, &count_}; }
  [[nodiscard]] Tensors forward(const Tensors& input, const Batch& batch,
                                const BlockContext& context) override;
  [[nodiscard]] BlockCost cost(const BatchShape& shape) override;

  std::vector<Mode> modes;  ///< of all forwards so far

 private:
  std::string name_ = "norm";
  Linear linear_;
  BlockState mean_, variance_;
  BlockState count_;  ///< valid samples seen
};

/// Stem, norm layer and head.
[[nodiscard]] Model small_model_with_norm();

/// How a step of `global` samples is run.
struct Setup {
  int ranks = 1;
  int stage = 0;
  bool recompute = false;
  int global = 10;
  int micro_batches = 1;
  bool peers = false;  ///< a machine whose devices write into each other's memory
  /// Samples of a micro-batch of one rank; all micro-batches have the same number of samples over
  /// all ranks.
  [[nodiscard]] int micro() const { return (global / micro_batches + ranks - 1) / ranks; }
};

/// Micro-batches of one rank, one step after the other. Each micro-batch of all ranks together has
/// the same samples whatever the number of ranks; fillers hold large numbers, which would show in
/// any statistic.
class SampleSource final : public BatchSource {
 public:
  SampleSource(const Setup& setup, int rank, int steps);
  std::size_t load(const Stream&) override { return next_++; }
  void skip(int micro_batches) { next_ += static_cast<std::size_t>(micro_batches); }
  [[nodiscard]] const Batch& batch(std::size_t buffer) const override {
    return batches_.at(buffer);
  }

 private:
  std::vector<Batch> batches_;
  std::size_t next_ = 0;
};

/// One rank with everything that it holds.
struct SmallRank {
  SmallRank(ThreadWorld& threads, const Setup& setup, int rank);
  SmallRank(const SmallRank&) = delete;
  SmallRank& operator=(const SmallRank&) = delete;

  /// Enqueues the next step.
  void enqueue();
  StepOutcome step() {
    enqueue();
    return executor->take_outcome();
  }
  /// Passes over the data of a step that an earlier run has made.
  void skip_step();
  [[nodiscard]] EvaluationTotals evaluate();
  [[nodiscard]] NormLayer& norm() { return dynamic_cast<NormLayer&>(*model.blocks[1]); }
  /// Copies of mean, variance and count.
  [[nodiscard]] std::vector<at::Tensor> state();

  Setup setup;
  int rank;
  std::shared_ptr<Store> store;
  Recipe recipe;
  Model model;
  ModelCost cost;
  Strategy strategy;
  Communicators communicators;
  std::unique_ptr<StateStore> states;
  RankRecordFile record = RankRecordFile::anonymous();
  std::unique_ptr<Executor> executor;
  SampleSource source;
  std::int64_t next_step = 0;
};

/// Calls `body` with each rank, on a thread of its own.
void with_ranks(const Setup& setup, const std::function<void(SmallRank& rank)>& body);

}  // namespace dstrain::test
