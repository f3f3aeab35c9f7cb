#pragma once

#include <cstdint>
#include <vector>

#include "engine/mesh/split.h"
#include "engine/nn/layer_pass.h"

/// What a classifier reads of each sample's tokens. What is pooled is little: each tensor rank has
/// all of it.
///
/// Legend: B samples, T tokens, F first ones, D width, M = B * T rows, m those of this tensor rank.
namespace dstrain {

/// The tokens of a sample, and the ranks that share them.
struct PooledTokens {
  std::int64_t tokens = 0, first = 0;  ///< T and F
  AxisPart tensor = {};
};

/// The first token of each sample of {x, delta} or their sum, all [m, D]: [B, D] each; or its cost.
[[nodiscard]] std::vector<Features> first_token(LayerPass& pass, const std::vector<Features>& input,
                                                const PooledTokens& sample);
/// The mean of a sample's tokens behind the first ones, with `both` behind the first of these: rows
/// [m, D] -> [B, D] or [B, 2 D]; or its cost.
[[nodiscard]] Features mean_token(LayerPass& pass, const Features& rows, const PooledTokens& sample,
                                  bool both);
/// Sum of {x, delta}, or x where that is the sum. What it holds counts with the pool's.
[[nodiscard]] Features sum_of(LayerPass& pass, const std::vector<Features>& input);

}  // namespace dstrain
