#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "engine/mesh/split.h"
#include "engine/nn/call.h"
#include "engine/nn/layer_pass.h"
#include "engine/nn/linear.h"

namespace dstrain {

/// Shape of a table with a row for each token.
struct TableShape {
  std::int64_t vocab_size = 0;
  std::int64_t width = 0;
};
/// NAME in files, [vocab_size, width]. Tensor ranks have equal parts of the rows where their number
/// divides these, else each has all.
[[nodiscard]] Parameter token_table(const std::string& name, const TableShape& shape,
                                    const InitialWeights& init, const AxisPart& tensor);

/// A row of a table for each token.
class TokenEmbedding {
 public:
  /// Files name the table PREFIX.weight.
  /// Its rows are `scale`, as their type rounds it, times those of the table.
  TokenEmbedding(const std::string& prefix, std::int64_t vocab_size, std::int64_t width,
                 const InitialWeights& init, const AxisPart& tensor = {}, double scale = 1);

  /// tokens [B, T] int64 -> [m, D], the rows of this rank of B * T.
  [[nodiscard]] at::Tensor forward(const at::Tensor& tokens_BT, const Call& call = {});

  [[nodiscard]] Parameter& table() { return table_; }
  /// forward() or its cost. It keeps the tokens, which belong to the batch.
  [[nodiscard]] Features run(LayerPass& pass, const Features& tokens_BT);
  void add_parameters(std::vector<Parameter*>& list) { list.push_back(&table_); }

 private:
  [[nodiscard]] at::Tensor rows_of(const at::Tensor& tokens_BT, const Call& call);

  Parameter table_;
  AxisPart tensor_;
  double scale_;
};

}  // namespace dstrain
