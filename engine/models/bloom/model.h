#pragma once

#include <string>
#include <vector>

#include "engine/models/bloom/config.h"
#include "engine/models/model.h"
#include "engine/nn/block.h"
#include "engine/nn/layer_norm.h"
#include "engine/nn/token_embedding.h"

/// BLOOM, BigScience 2022, arXiv:2211.05100, sec. 3.2, under the names of Hugging Face files:
/// linear attention biases, a layer norm on the embedding, tanh GELU.
///
/// Legend: B batch, T tokens, D width, M = B * T rows. Between blocks travel {x, delta} as in the
/// Vision Transformer (engine/models/vit/model.h); the stem returns {x} alone. The head is a
/// LanguageHead.
namespace dstrain {

/// Embedding and its norm.
class BloomStem final : public Block {
 public:
  explicit BloomStem(const BloomConfig& config, const AxisPart& tensor = {});
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::vector<Parameter*> parameters() override;
  [[nodiscard]] Tensors forward(const Tensors& input, const Batch& batch,
                                const BlockContext& context) override;
  [[nodiscard]] BlockCost cost(const BatchShape& shape) const override;

  [[nodiscard]] Parameter& table() { return embedding_.table(); }

 private:
  std::string name_;
  BloomConfig config_;
  AxisPart tensor_;
  TokenEmbedding embedding_;
  LayerNorm norm_;
};

[[nodiscard]] Model bloom_model(const ModelConfig& recipe, const ModelFamily& family,
                                const ModelInputs& inputs);

}  // namespace dstrain
