#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/nn/layer_pass.h"
#include "engine/nn/token_embedding.h"

namespace dstrain {

/// Adds to each token's row the row that its place in its sequence has in a learnt table.
class LearntPositions {
 public:
  /// Files name the table PREFIX.weight, [places, width]. Every rank along `tensor` has all of it.
  LearntPositions(const std::string& prefix, std::int64_t places, std::int64_t width,
                  const InitialWeights& init, const AxisPart& tensor = {})
      : table_(prefix, places, width, init), tensor_(tensor) {}

  /// rows [m, D], those of this rank of the batch's B * T, in place; or what that costs.
  [[nodiscard]] Features run(LayerPass& pass, Features rows_mD);
  void add_parameters(std::vector<Parameter*>& list) { table_.add_parameters(list); }

 private:
  TokenEmbedding table_;
  AxisPart tensor_;
};

}  // namespace dstrain
