#pragma once

#include "engine/models/decoder/config.h"

namespace dstrain {

/// Qwen3 (dense), Qwen Team 2025, arXiv:2505.09388, sec. 2: a decoder without biases that norms
/// each head of query and key, and whose heads may be wider than width / heads.
extern const DecoderKind kQwen3;

}  // namespace dstrain
