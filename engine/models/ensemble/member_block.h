#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "engine/models/image/head.h"
#include "engine/nn/layered_block.h"
#include "engine/nn/logits_mean.h"

/// Blocks of an ensemble: those of its members one after the other.
///
/// Legend: B samples, N members. Between blocks travels {x, logits [members so far, B, classes]};
/// before the first head {x}, behind a head {logits}. A later member's stem starts from the batch.
namespace dstrain {

/// Which member a block belongs to.
struct MemberPlace {
  std::size_t member = 0;
  std::int64_t classes = 0;

  /// "members.0."
  [[nodiscard]] std::string prefix() const;
  /// `input` and the logits of the members before this one.
  [[nodiscard]] std::vector<BoundaryTensor> with_logits(std::vector<BoundaryTensor> input,
                                                        const BatchShape& shape) const;
};

/// A block before the head. Hands the logits of the members before on.
class MemberBlock final : public LayeredBlock {
 public:
  /// Puts the member's prefix before the names of the block and of its tensors.
  MemberBlock(std::unique_ptr<ImageBlock> block, const MemberPlace& place, bool stem);

  [[nodiscard]] const std::string& name() const override { return block_->name(); }
  [[nodiscard]] std::vector<Parameter*> parameters() override { return block_->parameters(); }
  [[nodiscard]] std::vector<BlockState*> state() override { return block_->state(); }
  [[nodiscard]] std::vector<Features> run(LayerPass& pass,
                                          const std::vector<Features>& input) override;
  [[nodiscard]] Tensors input_of(const Tensors& input, const Batch& batch) const override;
  [[nodiscard]] std::vector<BoundaryTensor> input_sizes(const BatchShape& shape) const override;

 private:
  std::unique_ptr<ImageBlock> block_;
  MemberPlace place_;
  bool stem_;
};

/// A member's head. Adds its logits to those of the members before; the last one has the loss.
class MemberHead final : public LayeredBlock {
 public:
  MemberHead(std::unique_ptr<ImageHead> head, const MemberPlace& place, LogitsMean mean);

  [[nodiscard]] const std::string& name() const override { return head_->name(); }
  [[nodiscard]] std::vector<Parameter*> parameters() override { return head_->parameters(); }
  [[nodiscard]] std::vector<BlockState*> state() override { return head_->state(); }
  [[nodiscard]] std::vector<Features> run(LayerPass& pass,
                                          const std::vector<Features>& input) override;
  [[nodiscard]] Tensors input_of(const Tensors& input, const Batch& batch) const override;
  [[nodiscard]] std::vector<BoundaryTensor> input_sizes(const BatchShape& shape) const override;

  /// {x, logits of the members before} -> those and its own, [members so far, B, classes].
  [[nodiscard]] Features run_logits(LayerPass& pass, const std::vector<Features>& input);
  [[nodiscard]] const LogitsMean& mean() const { return mean_; }

 private:
  [[nodiscard]] bool last() const { return place_.member + 1 == mean_.weights.size(); }

  std::unique_ptr<ImageHead> head_;
  MemberPlace place_;
  LogitsMean mean_;
};

}  // namespace dstrain
