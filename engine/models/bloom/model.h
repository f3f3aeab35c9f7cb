#pragma once

#include "engine/models/bloom/config.h"
#include "engine/models/model.h"

/// BLOOM, BigScience 2022, arXiv:2211.05100, sec. 3.2, under the names of Hugging Face files:
/// linear attention biases, a layer norm on the embedding, tanh GELU.
///
/// Legend: B batch, T tokens, D width, M = B * T rows. Between blocks travel {x, delta} as in the
/// Vision Transformer (engine/models/vit/model.h); the stem, a TokenStem, returns {x}
/// alone. The head is a LanguageHead.
namespace dstrain {

[[nodiscard]] Model bloom_model(const ModelConfig& recipe, const ModelFamily& family,
                                const ModelInputs& inputs);

}  // namespace dstrain
