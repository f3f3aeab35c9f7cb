#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "engine/nn/layer_cost.h"
#include "engine/nn/linear.h"

namespace dstrain {

/// A row of a table for each token.
class TokenEmbedding {
 public:
  /// Files name the table PREFIX.weight, [vocab_size, width].
  TokenEmbedding(const std::string& prefix, std::int64_t vocab_size, std::int64_t width,
                 const InitialWeights& init);

  /// tokens [B, T] int64 -> [B * T, D].
  [[nodiscard]] at::Tensor forward(const at::Tensor& tokens_BT);

  [[nodiscard]] Parameter& table() { return table_; }
  /// It keeps the tokens, which belong to the batch.
  [[nodiscard]] LayerCost cost() const {
    LayerCost cost{.name = layer_name_of(table_)};
    count(table_, cost);
    return cost;
  }
  void add_parameters(std::vector<Parameter*>& list) { list.push_back(&table_); }

 private:
  Parameter table_;
};

}  // namespace dstrain
