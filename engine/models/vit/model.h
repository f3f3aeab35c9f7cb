#pragma once

#include <string>
#include <vector>

#include "engine/models/model.h"
#include "engine/models/vit/config.h"
#include "engine/nn/block.h"
#include "engine/nn/layer_norm.h"
#include "engine/nn/linear.h"

/// Vision Transformer, Dosovitskiy et al. 2021, arXiv:2010.11929, under the names of Hugging Face
/// files.
///
/// Legend: B batch, T tokens, D width, F width of the MLP, M = B * T rows. Between blocks travel
/// {x, delta}: the residual stream and the last branch not yet added to it, so that sum and layer
/// norm are one pass. The stem returns {x} alone.
namespace dstrain {

/// Patches, class token, positions. Each tensor rank makes all rows, as there are few products, and
/// hands on its own.
class VitStem final : public Block {
 public:
  explicit VitStem(const VitConfig& config, const AxisPart& tensor = {});
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::vector<Parameter*> parameters() override;
  [[nodiscard]] Tensors forward(const Tensors& input, const Batch& batch,
                                const BlockContext& context) override;
  [[nodiscard]] BlockCost cost(const BatchShape& shape) const override;

 private:
  std::string name_;
  VitConfig config_;
  AxisPart tensor_;
  Parameter class_token_;
  Parameter positions_;
  Linear projection_;
};

/// Final norm of the class token, classifier, loss. The class tokens are few: each tensor rank has
/// all of them, and the loss counts on the first.
class VitHead final : public Block {
 public:
  /// `joined` as LayerPlace has it.
  explicit VitHead(const VitConfig& config, const AxisPart& tensor = {}, bool joined = false);
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::vector<Parameter*> parameters() override;
  [[nodiscard]] Tensors forward(const Tensors& input, const Batch& batch,
                                const BlockContext& context) override;
  [[nodiscard]] BlockCost cost(const BatchShape& shape) const override;

  /// {x, delta} or their sum -> [B, classes]. `ranks` are those that have the other rows, or null.
  [[nodiscard]] at::Tensor logits(const Tensors& input, Communicator* ranks = nullptr);

 private:
  std::string name_;
  VitConfig config_;
  AxisPart tensor_;
  bool joined_;
  LayerNorm norm_;
  Linear classifier_;
};

[[nodiscard]] Model vit_model(const ModelConfig& recipe, const ModelFamily& family,
                              const ModelInputs& inputs);

}  // namespace dstrain
