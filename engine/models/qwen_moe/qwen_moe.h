#pragma once

#include "engine/models/decoder/config.h"

namespace dstrain {

/// Qwen2 MoE, Qwen Team 2024, arXiv:2407.10671, sec. 2.2.2: Qwen2 with a mixture of experts in
/// place of the MLP, beside it an expert that every token takes.
extern const DecoderKind kQwen2Moe;

/// Qwen3 MoE, Qwen Team 2025, arXiv:2505.09388, sec. 2: Qwen3 with a mixture of experts in place of
/// the MLP, without a shared expert.
extern const DecoderKind kQwen3Moe;

}  // namespace dstrain
