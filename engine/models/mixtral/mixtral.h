#pragma once

#include "engine/models/decoder/config.h"

namespace dstrain {

/// Mixtral, Jiang et al. 2024, arXiv:2401.04088, sec. 2: Mistral with a mixture of experts in place
/// of every MLP; the weights of a token's experts add up to 1.
extern const DecoderKind kMixtral;

}  // namespace dstrain
