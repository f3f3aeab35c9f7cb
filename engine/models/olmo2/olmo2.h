#pragma once

#include "engine/models/decoder/config.h"

namespace dstrain {

/// OLMo 2, OLMo Team 2024, arXiv:2501.00656, sec. 2: Llama that norms what its branches make
/// instead of what they take, and queries and keys over all heads.
extern const DecoderKind kOlmo2;

}  // namespace dstrain
