#pragma once

#include <string_view>

#include "engine/models/vit/config.h"

namespace dstrain {

/// What the vision towers of CLIP and SigLIP call their tensors.
[[nodiscard]] VitNames tower_names();

/// The vision tower of CLIP, Radford et al. 2021, arXiv:2103.00020: quick GELU, a norm before the
/// layers, and a classifier of the mean patch, which is not normed. The norm behind the layers,
/// which only the contrastive model reads, goes into exports as it was.
extern const VitKind kClip;

}  // namespace dstrain
