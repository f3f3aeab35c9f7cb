#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "engine/models/image/head.h"
#include "engine/nn/block.h"
#include "engine/recipe/recipe.h"

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
  /// Logits of the members before this one.
  [[nodiscard]] BoundaryTensor logits(const BatchShape& shape, std::size_t members) const;
};

/// A block before the head. Hands the logits of the members before on.
class MemberBlock final : public Block {
 public:
  /// Puts the member's prefix before the names of the block and of its tensors.
  MemberBlock(std::unique_ptr<ImageBlock> block, const MemberPlace& place, bool stem);

  [[nodiscard]] const std::string& name() const override { return block_->name(); }
  [[nodiscard]] std::vector<Parameter*> parameters() override { return block_->parameters(); }
  [[nodiscard]] std::vector<BlockState*> state() override { return block_->state(); }
  [[nodiscard]] Tensors forward(const Tensors& input, const Batch& batch,
                                const BlockContext& context) override;
  [[nodiscard]] BlockCost cost(const BatchShape& shape) const override;

 private:
  std::unique_ptr<ImageBlock> block_;
  MemberPlace place_;
  bool stem_;
};

/// How the members' outputs become one.
struct EnsembleMean {
  std::vector<double> weights;  ///< of each member; their sum is 1
  EnsembleAverage average = EnsembleAverage::logits;

  /// Logits [N, B, classes] -> [B, classes] fp32, whose softmax is the ensemble's: the weighted
  /// mean, or the logarithm of the weighted mean of the probabilities.
  [[nodiscard]] at::Tensor of(const at::Tensor& logits_NBC) const;
  /// Costs of that.
  void add_costs(ImageCosts& costs, std::int64_t samples, std::int64_t classes) const;
};

/// A member's head. Adds its logits to those of the members before; the last one has the loss.
class MemberHead final : public Block {
 public:
  MemberHead(std::unique_ptr<ImageHead> head, const MemberPlace& place, EnsembleMean mean);

  [[nodiscard]] const std::string& name() const override { return head_->name(); }
  [[nodiscard]] std::vector<Parameter*> parameters() override { return head_->parameters(); }
  [[nodiscard]] std::vector<BlockState*> state() override { return head_->state(); }
  [[nodiscard]] Tensors forward(const Tensors& input, const Batch& batch,
                                const BlockContext& context) override;
  [[nodiscard]] BlockCost cost(const BatchShape& shape) const override;

  /// {x, logits of the members before} -> those and its own, [members so far, B, classes].
  [[nodiscard]] at::Tensor logits(const Tensors& input, const Call& call);
  [[nodiscard]] const EnsembleMean& mean() const { return mean_; }

 private:
  [[nodiscard]] bool last() const { return place_.member + 1 == mean_.weights.size(); }

  std::unique_ptr<ImageHead> head_;
  MemberPlace place_;
  EnsembleMean mean_;
};

}  // namespace dstrain
