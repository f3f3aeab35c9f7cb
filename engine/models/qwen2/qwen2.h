#pragma once

#include "engine/models/decoder/config.h"

namespace dstrain {

/// Qwen2 and Qwen2.5, Qwen Team 2024, arXiv:2412.15115, sec. 2: a decoder whose query, key and
/// value have biases.
extern const DecoderKind kQwen2;

}  // namespace dstrain
