#pragma once

#include <string>
#include <vector>

#include "engine/models/bloom/config.h"
#include "engine/models/model.h"
#include "engine/nn/attention.h"
#include "engine/nn/block.h"
#include "engine/nn/layer_norm.h"
#include "engine/nn/mlp.h"
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
  explicit BloomStem(const BloomConfig& config);
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::vector<Parameter*> parameters() override;
  [[nodiscard]] Tensors forward(const Tensors& input, const Batch& batch,
                                const Objective& objective) override;
  [[nodiscard]] BlockCost cost(const BatchShape& shape) const override;

  [[nodiscard]] Parameter& table() { return embedding_.table(); }

 private:
  std::string name_;
  BloomConfig config_;
  TokenEmbedding embedding_;
  LayerNorm norm_;
};

/// Pre-norm decoder layer: x + attention(norm(x)), then x + mlp(norm(x)).
class BloomLayer final : public Block {
 public:
  BloomLayer(const BloomConfig& config, std::int64_t index);
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::vector<Parameter*> parameters() override;
  [[nodiscard]] std::vector<Linear*> linears() override;
  [[nodiscard]] Tensors forward(const Tensors& input, const Batch& batch,
                                const Objective& objective) override;
  [[nodiscard]] BlockCost cost(const BatchShape& shape) const override;

 private:
  std::string name_;
  bool first_;  ///< its input has no delta
  BloomConfig config_;
  LayerNorm norm_before_;
  SelfAttention attention_;
  LayerNorm norm_after_;
  Mlp mlp_;
};

[[nodiscard]] Model bloom_model(const ModelConfig& recipe, const ModelFamily& family,
                                const ModelInputs& inputs);

}  // namespace dstrain
