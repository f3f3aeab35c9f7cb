#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/models/language_head.h"
#include "engine/nn/layer_norm.h"
#include "engine/nn/layered_block.h"
#include "engine/nn/learnt_positions.h"
#include "engine/nn/token_embedding.h"

namespace dstrain {

/// First block of a language model: the embedding, learnt positions added to it and the norm behind
/// it, if any. Returns {x}.
class TokenStem final : public LayeredBlock {
 public:
  /// Files name the table PREFIX.weight, and the block is PREFIX.
  TokenStem(const std::string& prefix, const LanguageShape& shape, const InitialWeights& init,
            double scale = 1, std::optional<LayerNorm> norm = std::nullopt,
            std::optional<LearntPositions> positions = std::nullopt);
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::vector<Parameter*> parameters() override;
  [[nodiscard]] std::vector<Features> run(LayerPass& pass,
                                          const std::vector<Features>& input) override;
  [[nodiscard]] Tensors input_of(const Tensors&, const Batch& batch) const override {
    return {batch.tokens};
  }
  [[nodiscard]] std::vector<BoundaryTensor> input_sizes(const BatchShape& shape) const override {
    return {{{shape.micro_batch, shape_.sequence}, sizeof(std::int64_t)}};
  }

  [[nodiscard]] Parameter& table() { return embedding_.table(); }

 private:
  std::string name_;
  LanguageShape shape_;
  TokenEmbedding embedding_;
  std::optional<LearntPositions> positions_;
  std::optional<LayerNorm> norm_;
};

/// The blocks of a language model: `layer(0)` to `layer(layers - 1)` between its stem and a head
/// behind `norm`, which reads the stem's table where they are `tied`.
[[nodiscard]] Blocks language_blocks(
    std::unique_ptr<TokenStem> stem, std::int64_t layers,
    const std::function<std::unique_ptr<Block>(std::int64_t index)>& layer, LanguageHead::Norm norm,
    const LanguageShape& shape, bool tied, const InitialWeights& init);

}  // namespace dstrain
