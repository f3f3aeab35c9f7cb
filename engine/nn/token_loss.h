#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "engine/kernels/ops.h"
#include "engine/kernels/parameter.h"
#include "engine/mesh/split.h"
#include "engine/nn/layer_pass.h"
#include "engine/nn/linear.h"
#include "engine/nn/token_embedding.h"

namespace dstrain {

struct TokenLossOptions {
  AxisPart part = {};  ///< of each sample that this rank has
  AxisPart tensor = {};
  bool pairs = false;  ///< samples may be pairs: its cost is that of these
  double softcap = 0;  ///< of the logits, as AttentionShape::softcap of scores
};

/// Loss of the tokens that follow, over the classes of a table: that of the embedding (Press & Wolf
/// 2017, arXiv:1608.05859) or one of its own. Where samples are pairs, the loss is that of
/// BlockContext::pair_loss.
///
/// Tensor ranks with parts of the table share the loss of all rows; where the table is whole, each
/// has that of its own rows.
///
/// Legend: D width, V vocabulary, M rows of all ranks, m those of this one.
class TokenLoss {
 public:
  /// `tied` is the embedding's table, which must outlive the loss; null for one of its own, `name`
  /// in files.
  TokenLoss(const std::string& name, const TableShape& shape, Parameter* tied,
            const InitialWeights& init, const TokenLossOptions& options);
  TokenLoss(const TokenLoss&) = delete;
  TokenLoss& operator=(const TokenLoss&) = delete;

  /// [m, D] -> the loss of this rank's rows, or of all, or its cost.
  [[nodiscard]] Features run(LayerPass& pass, const Features& x_mD);
  /// [M, D] -> [M, V]; of a whole table.
  [[nodiscard]] at::Tensor logits(const at::Tensor& x_MD);
  /// [B, D] -> [B] int64, the most likely token of each row; `ranks` are those of the tensor axis.
  [[nodiscard]] at::Tensor most_likely(const at::Tensor& x_BD, Communicator* ranks);

  [[nodiscard]] Parameter& table() { return *table_; }

 private:
  [[nodiscard]] bool cut() const { return own_table_.cut == Cut::tensor; }
  [[nodiscard]] at::Tensor pair_loss(const at::Tensor& x_MD, const Batch& batch,
                                     const BlockContext& context);
  [[nodiscard]] at::Tensor loss(const at::Tensor& x_mD, const Batch& batch,
                                const BlockContext& context);
  void add_cost(LayerCosts& costs, const Features& x_mD) const;
  [[nodiscard]] Bytes logit_bytes(std::int64_t own_rows, int compute_bytes,
                                  ops::LogitRows at_once) const;
  void add_exchanges(LayerCosts& costs, std::int64_t own_rows) const;

  std::string name_;  ///< of its layer
  TableShape shape_;
  TokenLossOptions options_;
  Parameter own_table_;
  Parameter* table_;
};

}  // namespace dstrain
