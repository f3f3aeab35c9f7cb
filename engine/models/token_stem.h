#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/models/language_head.h"
#include "engine/nn/block.h"
#include "engine/nn/layer_norm.h"
#include "engine/nn/token_embedding.h"

namespace dstrain {

/// First block of a language model: the embedding and the norm behind it, if any. Returns {x}.
class TokenStem final : public Block {
 public:
  /// Files name the table PREFIX.weight, and the block is PREFIX.
  TokenStem(const std::string& prefix, const LanguageShape& shape, const InitialWeights& init,
            double scale = 1, std::optional<LayerNorm> norm = std::nullopt);
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::vector<Parameter*> parameters() override;
  [[nodiscard]] Tensors forward(const Tensors& input, const Batch& batch,
                                const BlockContext& context) override;
  [[nodiscard]] BlockCost cost(const BatchShape& shape) override;

  [[nodiscard]] Parameter& table() { return embedding_.table(); }

 private:
  std::string name_;
  LanguageShape shape_;
  TokenEmbedding embedding_;
  std::optional<LayerNorm> norm_;
};

}  // namespace dstrain
