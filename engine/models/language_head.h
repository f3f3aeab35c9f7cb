#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "engine/mesh/split.h"
#include "engine/models/model.h"
#include "engine/nn/layer_norm.h"
#include "engine/nn/layered_block.h"
#include "engine/nn/linear.h"
#include "engine/nn/rms_norm.h"
#include "engine/nn/token_loss.h"
#include "engine/recipe/families.h"

namespace dstrain {

/// The head's own table, as files name it.
inline constexpr const char* kLanguageHeadWeight = "lm_head.weight";

/// What the blocks of a language model share.
struct LanguageShape {
  std::int64_t width = 0;
  std::int64_t vocab_size = 0;
  std::int64_t sequence = 0;  ///< tokens of a sample, on this rank
  AxisPart part = {};         ///< of each sample that this rank has
  AxisPart tensor = {};
  bool joined = false;  ///< LayerPlace::joined
  bool pairs = false;   ///< ModelInputs::pairs
  double softcap = 0;   ///< of the logits, as AttentionShape::softcap of scores
};
[[nodiscard]] LanguageShape language_shape(const ModelSizes& sizes, const ModelInputs& inputs,
                                           double softcap = 0);

/// The model of these blocks, whose `config_json` and `notes` are as Model has them.
[[nodiscard]] Model language_model(Blocks blocks, const ModelSizes& sizes,
                                   const ModelInputs& inputs, std::string config_json,
                                   std::vector<std::string> notes);

/// Final norm, then the loss of the tokens that follow or, in generation, the most likely next
/// token.
///
/// Legend: B batch, T tokens, D width, V vocabulary, M = B * T rows, m those of this rank.
class LanguageHead final : public LayeredBlock {
 public:
  using Norm = std::variant<LayerNorm, RmsNorm>;

  /// `tied` is the embedding's table, which must outlive the head; null for a matrix of its own,
  /// kLanguageHeadWeight in files.
  LanguageHead(Norm norm, const LanguageShape& shape, Parameter* tied, const InitialWeights& init);

  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::vector<Parameter*> parameters() override;
  [[nodiscard]] std::vector<Features> run(LayerPass& pass,
                                          const std::vector<Features>& input) override;
  [[nodiscard]] Tensors input_of(const Tensors& input, const Batch& batch) const override;
  [[nodiscard]] std::vector<BoundaryTensor> input_sizes(const BatchShape& shape) const override;

  [[nodiscard]] std::int64_t width() const { return shape_.width; }
  /// {x, delta} or their sum -> [M, V]; of a whole table.
  [[nodiscard]] at::Tensor logits(const Tensors& input);

 private:
  /// The final norm's output for {x, delta} or their sum.
  [[nodiscard]] Features normalize(LayerPass& pass, const std::vector<Features>& input);
  void choose_next(const std::vector<Features>& input, const BlockContext& context);

  std::string name_;
  LanguageShape shape_;
  Norm norm_;
  TokenLoss loss_;
};

}  // namespace dstrain
