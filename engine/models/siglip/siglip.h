#pragma once

#include "engine/models/vit/config.h"

namespace dstrain {

/// The vision tower of SigLIP, Zhai et al. 2023, arXiv:2303.15343, and of SigLIP 2 of one image
/// size: tanh GELU, no class token, and a classifier of the mean patch. The contrastive model's
/// pooling by attention is not read, and exports are without it.
extern const VitKind kSiglip;

}  // namespace dstrain
