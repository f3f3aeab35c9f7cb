#pragma once

#include "engine/models/decoder/config.h"

namespace dstrain {

/// Mistral, Jiang et al. 2023, arXiv:2310.06825, sec. 2: Llama with a window of tokens that each
/// one sees, which versions after 0.1 gave up.
extern const DecoderKind kMistral;

}  // namespace dstrain
