#pragma once

#include <cstdint>
#include <string>

#include "engine/kernels/conv/image_activation.h"
#include "engine/kernels/ops.h"
#include "engine/kernels/parameter.h"
#include "engine/kernels/pool/ops_pool.h"
#include "engine/nn/feature_shape.h"
#include "engine/nn/layer_pass.h"

/// Layers of images that are one operator each, run or counted. Legend: as engine/kernels/ops.h.
namespace dstrain {

/// What pooling makes of such an image.
[[nodiscard]] FeatureShape pooled(const FeatureShape& image, const ops::PoolShape& shape);

/// ops::max_pool as the layer `name`.
[[nodiscard]] Features max_pool(LayerPass& pass, const Features& x, const ops::PoolShape& shape,
                                const std::string& name);
/// ops::average_pool as the layer `name`: [B, C].
[[nodiscard]] Features average_pool(LayerPass& pass, const Features& x, const std::string& name);
/// Means of ops::average_grid in the order channel, row, column: [B, C * side * side]. Their pass
/// over the image is not counted.
[[nodiscard]] Features average_grid(LayerPass& pass, const Features& x, std::int64_t side);
/// ops::image_activation as the layer `name`.
[[nodiscard]] Features image_activation(LayerPass& pass, const Features& x,
                                        ops::ImageActivation activation, const std::string& name);
/// ops::dropout where `mask` drops any; not counted.
[[nodiscard]] Features dropout(LayerPass& pass, const Features& x, const ops::DropMask& mask);
/// ops::layer_scale of `branch`; `residual` is the block's input.
[[nodiscard]] Features layer_scale(LayerPass& pass, const Features& branch, Parameter& scale,
                                   const ops::DropMask& mask, const Features& residual);
/// A tensor of its own: a block's input goes when the block is done.
[[nodiscard]] Features copy(LayerPass& pass, const Features& x);

}  // namespace dstrain
