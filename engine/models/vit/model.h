#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/models/model.h"
#include "engine/models/vit/config.h"
#include "engine/nn/block.h"
#include "engine/nn/block_state.h"
#include "engine/nn/layer_norm.h"
#include "engine/nn/linear.h"

/// Vision Transformers, Dosovitskiy et al. 2021, arXiv:2010.11929, that classify images, under the
/// names of Hugging Face files. The families that are such transformers say by a VitKind what they
/// have for their own.
///
/// Legend: B batch, T tokens, F first ones, D width, M = B * T rows, m those of this tensor rank.
/// Between blocks travel {x, delta}: the residual stream and the last branch not yet added to it,
/// so that sum and layer norm are one pass. The stem returns {x} alone.
namespace dstrain {

/// Patches, first tokens, positions, perhaps a norm. Each tensor rank makes all rows, as there are
/// few products, and hands on its own.
class VitStem final : public Block {
 public:
  VitStem(const VitConfig& config, const VitKind& kind, const AxisPart& tensor = {});
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::vector<Parameter*> parameters() override;
  /// VitKind::unread.
  [[nodiscard]] std::vector<BlockState*> state() override;
  [[nodiscard]] Tensors forward(const Tensors& input, const Batch& batch,
                                const BlockContext& context) override;
  [[nodiscard]] BlockCost cost(const BatchShape& shape) override;

 private:
  std::string name_;
  VitConfig config_;
  AxisPart tensor_;
  std::int64_t tokens_, first_;  ///< T and F
  Parameter first_tokens_;
  Parameter positions_;
  Linear projection_;
  std::optional<LayerNorm> norm_;
  std::vector<BlockState> unread_;
};

/// Last norm, what VitPooling takes of the rows, classifier, loss. What is pooled is little: each
/// tensor rank has all of it, and the loss counts on the first.
class VitHead final : public Block {
 public:
  /// `joined` as LayerPlace has it.
  VitHead(const VitConfig& config, const VitKind& kind, const AxisPart& tensor = {},
          bool joined = false);
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::vector<Parameter*> parameters() override;
  [[nodiscard]] Tensors forward(const Tensors& input, const Batch& batch,
                                const BlockContext& context) override;
  [[nodiscard]] BlockCost cost(const BatchShape& shape) override;

  /// {x, delta} or their sum -> [B, classes]. `ranks` are those that have the other rows, or null.
  [[nodiscard]] at::Tensor logits(const Tensors& input, Communicator* ranks = nullptr);

 private:
  /// What the classifier reads of the first token, or of the mean: [B, D], or [B, 2 D] of both.
  [[nodiscard]] at::Tensor normed_token(const Tensors& input, std::int64_t batch,
                                        Communicator* ranks);
  [[nodiscard]] at::Tensor pooled(const Tensors& input, std::int64_t batch, Communicator* ranks);
  /// The mean of both heads' logits; of one rank, without gradients.
  [[nodiscard]] at::Tensor of_two_heads(const Tensors& input, std::int64_t batch);
  [[nodiscard]] BlockCost cost_of_mean(const BatchShape& shape) const;
  [[nodiscard]] LayerCost classes_cost(const BatchShape& shape) const;

  std::string name_;
  VitConfig config_;
  VitPooling pooling_;
  AxisPart tensor_;
  bool joined_;
  std::int64_t tokens_, first_;  ///< T and F
  std::optional<LayerNorm> norm_;
  Linear classifier_;
  std::optional<Linear> second_;  ///< of the second token
};

[[nodiscard]] Model vit_model(const ModelConfig& recipe, const ModelFamily& family,
                              const VitKind& kind, const ModelInputs& inputs);

/// The same for Family::make.
template <const VitKind& kind>
[[nodiscard]] Model make_vit(const ModelConfig& recipe, const ModelFamily& family,
                             const ModelInputs& inputs) {
  return vit_model(recipe, family, kind, inputs);
}

}  // namespace dstrain
