#pragma once

#include "engine/models/decoder/config.h"

namespace dstrain {

/// Phi-3, Abdin et al. 2024, arXiv:2404.14219, sec. 2, Phi-4, arXiv:2412.08905, and Phi-4-mini,
/// arXiv:2503.01743, sec. 2: Llama whose files have query, key and value in one tensor and gate and
/// up in another; some with a window, some with longrope or heads of which a part turns.
extern const DecoderKind kPhi3;

}  // namespace dstrain
