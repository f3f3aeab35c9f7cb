#pragma once

#include "engine/models/decoder/config.h"

namespace dstrain {

/// Gemma 2, Gemma Team 2024, arXiv:2408.00118, sec. 2: layers with and without a window by turns,
/// caps of attention's scores and of the logits.
extern const DecoderKind kGemma2;

/// The text models of Gemma 3, Gemma Team 2025, arXiv:2503.19786, sec. 2: five layers with a window
/// to one without, which has a rotary base of its own; norms of each head instead of caps.
extern const DecoderKind kGemma3;

}  // namespace dstrain
