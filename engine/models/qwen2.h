#pragma once

#include <string>
#include <vector>

#include "engine/models/qwen2_config.h"
#include "engine/nn/attention.h"
#include "engine/nn/block.h"
#include "engine/nn/gated_mlp.h"
#include "engine/nn/rms_norm.h"
#include "engine/nn/token_embedding.h"

/// Qwen2 and Qwen2.5, Qwen Team 2024, arXiv:2412.15115, sec. 2, under the names of Hugging Face
/// files: rotary positions, grouped queries with biases, gated MLP, root-mean-square norms.
///
/// Legend: B batch, T tokens, D width, M = B * T rows. Between blocks travel {x, delta} as in the
/// Vision Transformer (engine/models/vit.h); the stem returns {x} alone. The head is a
/// LanguageHead.
namespace dstrain {

/// Embedding.
class Qwen2Stem final : public Block {
 public:
  explicit Qwen2Stem(const Qwen2Config& config);
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::vector<Parameter*> parameters() override { return {&table()}; }
  [[nodiscard]] Tensors forward(const Tensors& input, const Batch& batch,
                                const Objective& objective) override;
  [[nodiscard]] BlockCost cost(const BatchShape& shape) const override;

  [[nodiscard]] Parameter& table() { return embedding_.table(); }

 private:
  std::string name_;
  Qwen2Config config_;
  TokenEmbedding embedding_;
};

/// Pre-norm decoder layer: x + attention(norm(x)), then x + mlp(norm(x)).
class Qwen2Layer final : public Block {
 public:
  Qwen2Layer(const Qwen2Config& config, std::int64_t index);
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::vector<Parameter*> parameters() override;
  [[nodiscard]] std::vector<Linear*> linears() override;
  [[nodiscard]] Tensors forward(const Tensors& input, const Batch& batch,
                                const Objective& objective) override;
  [[nodiscard]] BlockCost cost(const BatchShape& shape) const override;

 private:
  std::string name_;
  bool first_;  ///< its input has no delta
  Qwen2Config config_;
  RmsNorm norm_before_;
  SelfAttention attention_;
  RmsNorm norm_after_;
  GatedMlp mlp_;
};

[[nodiscard]] Blocks make_qwen2(const Qwen2Config& config);

}  // namespace dstrain
