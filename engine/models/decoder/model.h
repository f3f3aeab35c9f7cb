#pragma once

#include "engine/models/decoder/config.h"
#include "engine/models/model.h"

/// Decoders of the kind that Llama has shaped (Touvron et al. 2023, arXiv:2302.13971, sec. 2.2),
/// under the names of Hugging Face files: rotary positions, grouped queries, gated MLP,
/// root-mean-square norms. The families that are such decoders say by a DecoderKind what they have
/// for their own.
///
/// Legend: B batch, T tokens, D width, M = B * T rows. Between blocks travel {x, delta} as in the
/// Vision Transformer (engine/models/vit/model.h); the stem, a TokenStem, returns {x}
/// alone. The head is a LanguageHead.
namespace dstrain {

[[nodiscard]] Model decoder_model(DecoderConfig config, const ModelFamily& family,
                                  const DecoderKind& kind, const ModelInputs& inputs);

/// The same for Family::make.
template <const DecoderKind& kind>
[[nodiscard]] Model make_decoder(const ModelConfig& recipe, const ModelFamily& family,
                                 const ModelInputs& inputs) {
  return decoder_model(decoder_config(recipe, family, kind), family, kind, inputs);
}

}  // namespace dstrain
