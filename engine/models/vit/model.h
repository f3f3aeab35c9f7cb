#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/models/model.h"
#include "engine/models/vit/config.h"
#include "engine/nn/block_state.h"
#include "engine/nn/layer_norm.h"
#include "engine/nn/layered_block.h"
#include "engine/nn/linear.h"
#include "engine/nn/patch_embedding.h"
#include "engine/nn/token_pool.h"

/// Vision Transformers, Dosovitskiy et al. 2021, arXiv:2010.11929, that classify images, under the
/// names of Hugging Face files. The families that are such transformers say by a VitKind what they
/// have for their own.
///
/// Legend: B batch, T tokens, F first ones, D width, M = B * T rows, m those of this tensor rank.
/// Between blocks travel {x, delta}: the residual stream and the last branch not yet added to it,
/// so that sum and layer norm are one pass. The stem returns {x} alone.
namespace dstrain {

/// Patches, first tokens, positions, perhaps a norm.
class VitStem final : public LayeredBlock {
 public:
  VitStem(const VitConfig& config, const VitKind& kind, const AxisPart& tensor = {});
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::vector<Parameter*> parameters() override;
  /// VitKind::unread.
  [[nodiscard]] std::vector<BlockState*> state() override;
  [[nodiscard]] std::vector<Features> run(LayerPass& pass,
                                          const std::vector<Features>& input) override;
  [[nodiscard]] Tensors input_of(const Tensors&, const Batch& batch) const override {
    return {batch.images};
  }
  [[nodiscard]] std::vector<BoundaryTensor> input_sizes(const BatchShape& shape) const override;

 private:
  std::string name_;
  PatchShape shape_;
  PatchEmbedding embedding_;
  std::optional<LayerNorm> norm_;
  std::vector<BlockState> unread_;
};

/// Last norm, what VitPooling takes of the rows, classifier, loss. Each tensor rank has the logits,
/// and the loss counts on the first.
class VitHead final : public LayeredBlock {
 public:
  /// `joined` as LayerPlace has it.
  VitHead(const VitConfig& config, const VitKind& kind, const AxisPart& tensor = {},
          bool joined = false);
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::vector<Parameter*> parameters() override;
  [[nodiscard]] std::vector<Features> run(LayerPass& pass,
                                          const std::vector<Features>& input) override;
  [[nodiscard]] Tensors input_of(const Tensors& input, const Batch& batch) const override;
  [[nodiscard]] std::vector<BoundaryTensor> input_sizes(const BatchShape& shape) const override;

  /// {x, delta} or their sum -> [B, classes]; of one rank.
  [[nodiscard]] at::Tensor logits(const Tensors& input);

 private:
  /// {x, delta} or their sum -> [B, classes].
  [[nodiscard]] Features run_logits(LayerPass& pass, const std::vector<Features>& input);
  /// The mean of both heads' logits; of one rank, without gradients.
  [[nodiscard]] Features of_two_heads(LayerPass& pass, const std::vector<Features>& input);

  std::string name_;
  std::int64_t width_;
  VitPooling pooling_;
  PooledTokens sample_;
  bool joined_;
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
