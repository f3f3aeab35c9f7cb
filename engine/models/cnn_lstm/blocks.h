#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/models/image/head.h"
#include "engine/nn/block.h"
#include "engine/nn/linear.h"
#include "engine/nn/lstm.h"

/// Blocks of a CNN-LSTM.
///
/// Legend: B samples of T frames, F features. Between the trunk's blocks travels what the trunk has
/// of B * T images, behind it {features [B * T, F]}.
namespace dstrain {

/// A block of the trunk, for which each frame is a sample.
class TrunkBlock final : public Block {
 public:
  TrunkBlock(std::unique_ptr<ImageBlock> block, std::int64_t frames)
      : block_(std::move(block)), frames_(frames) {}

  [[nodiscard]] const std::string& name() const override { return block_->name(); }
  [[nodiscard]] std::vector<Parameter*> parameters() override { return block_->parameters(); }
  [[nodiscard]] std::vector<BlockState*> state() override { return block_->state(); }
  [[nodiscard]] Tensors forward(const Tensors& input, const Batch& batch,
                                const BlockContext& context) override;
  [[nodiscard]] BlockCost cost(const BatchShape& shape) override;

 private:
  std::unique_ptr<ImageBlock> block_;
  std::int64_t frames_;
};

/// What the trunk's head has before its linear maps, LSTM, classifier, loss.
class LstmHead final : public LayeredBlock {
 public:
  LstmHead(std::unique_ptr<ImageHead> trunk, std::int64_t frames, Lstm lstm, Linear classifier,
           double dropout);

  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::vector<Parameter*> parameters() override;
  [[nodiscard]] std::vector<BlockState*> state() override { return trunk_->state(); }
  [[nodiscard]] std::vector<Features> run(LayerPass& pass,
                                          const std::vector<Features>& input) override;
  [[nodiscard]] Tensors input_of(const Tensors& input, const Batch& batch) const override {
    return trunk_->input_of(input, batch);
  }
  [[nodiscard]] std::vector<BoundaryTensor> input_sizes(const BatchShape& shape) const override;

  /// x of B * T images -> [B, classes].
  [[nodiscard]] Features run_logits(LayerPass& pass, const Features& x);

 private:
  std::string name_;
  std::unique_ptr<ImageHead> trunk_;
  std::int64_t frames_;
  Lstm lstm_;
  Linear classifier_;
  double dropout_;  ///< of the last state
};

}  // namespace dstrain
