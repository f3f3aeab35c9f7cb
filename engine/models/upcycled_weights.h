#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/models/decoder/config.h"
#include "engine/models/model.h"
#include "engine/models/weights.h"

/// A mixture of experts made from a dense model, which computes the same at its first step up to
/// the order of sums: He et al. 2024, arXiv:2410.07524, sec. 3 (virtual groups).
///
/// The shared expert is the first half of the dense MLP, its gate 0 (a factor of 1/2), its second
/// matrix times 2. Of the other half, expert j is part j mod k of k, its second matrix times k, as
/// each of the k experts of a token has the weight 1/k. Rows of the router are drawn at random,
/// equal for the k experts of a group, so that a token takes all parts of one group.
namespace dstrain {

/// The mixture of recipe.name and the recipe's sizes, what else it needs from config.json of the
/// dense model `recipe.weights`. Error{usage} lists all that does not fit.
[[nodiscard]] DecoderConfig upcycled_config(const ModelConfig& recipe, const ModelFamily& family,
                                            const DecoderKind& kind);

/// First weights of `model`, made by upcycled_config from the same recipe.
[[nodiscard]] std::unique_ptr<WeightSource> open_upcycled_weights(const ModelConfig& recipe,
                                                                  const Model& model,
                                                                  std::int64_t seed,
                                                                  std::vector<std::string>& notes);

}  // namespace dstrain
