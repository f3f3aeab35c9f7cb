#pragma once

#include "engine/models/decoder/config.h"

namespace dstrain {

/// Llama 3, Grattafiori et al. 2024, arXiv:2407.21783, sec. 3.2: a decoder without biases; from 3.1
/// on with slowed rotary positions. Llama 2, TinyLlama and SmolLM2 are such models, too.
extern const DecoderKind kLlama;

}  // namespace dstrain
