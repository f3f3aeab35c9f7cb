#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/mesh/split.h"
#include "engine/models/model.h"
#include "engine/nn/block.h"
#include "engine/nn/layer_norm.h"
#include "engine/nn/linear.h"
#include "engine/nn/rms_norm.h"
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
/// token. The classifier is the table of the embedding (Press & Wolf 2017, arXiv:1608.05859) or a
/// matrix of its own.
///
/// Where samples are pairs, the loss is that of BlockContext::pair_loss.
///
/// Tensor ranks with parts of the table share the loss of all rows; where the table is whole, each
/// has that of its own rows.
///
/// Legend: B batch, T tokens, D width, V vocabulary, M = B * T rows, m those of this rank.
class LanguageHead final : public Block {
 public:
  using Norm = std::variant<LayerNorm, RmsNorm>;

  /// `tied` is the embedding's table, which must outlive the head; null for a matrix of its own,
  /// kLanguageHeadWeight in files.
  LanguageHead(Norm norm, const LanguageShape& shape, Parameter* tied, const InitialWeights& init);

  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::vector<Parameter*> parameters() override;
  [[nodiscard]] Tensors forward(const Tensors& input, const Batch& batch,
                                const BlockContext& context) override;
  [[nodiscard]] BlockCost cost(const BatchShape& shape) override;

  [[nodiscard]] std::int64_t width() const { return shape_.width; }
  /// {x, delta} or their sum -> [M, V]; of a whole table.
  [[nodiscard]] at::Tensor logits(const Tensors& input);

 private:
  /// The final norm's output for {x, delta} or their sum.
  [[nodiscard]] at::Tensor normalize(const Tensors& input);
  void choose_next(const Tensors& input, const BlockContext& context);
  [[nodiscard]] at::Tensor pair_loss(const at::Tensor& x_MD, const Batch& batch,
                                     const BlockContext& context);
  /// The loss of this rank's rows, or of all.
  [[nodiscard]] at::Tensor loss(const at::Tensor& x_mD, const Batch& batch,
                                const BlockContext& context);
  [[nodiscard]] Bytes logit_bytes(std::int64_t own_rows, int compute_bytes,
                                  ops::LogitRows at_once) const;
  void add_loss_exchanges(BlockCost& cost, std::int64_t own_rows, int compute_bytes) const;

  std::string name_;
  LanguageShape shape_;
  Norm norm_;
  Parameter own_table_;
  Parameter* table_;
};

}  // namespace dstrain
