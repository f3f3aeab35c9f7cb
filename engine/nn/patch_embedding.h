#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "engine/kernels/parameter.h"
#include "engine/mesh/split.h"
#include "engine/nn/layer_pass.h"
#include "engine/nn/linear.h"

namespace dstrain {

/// Images and their patches, in pixels but for `position_side`.
struct PatchShape {
  std::int64_t image_size = 0, patch_size = 0, channels = 0;
  std::int64_t position_side = 0;  ///< patches along a side of the images that have the positions
  std::int64_t first_tokens = 0;   ///< before the patches
  [[nodiscard]] std::int64_t side() const { return image_size / patch_size; }
  [[nodiscard]] std::int64_t patches() const { return side() * side(); }
  [[nodiscard]] std::int64_t tokens() const { return first_tokens + patches(); }
};

/// Rows of patches behind first tokens, with positions. Dosovitskiy et al. 2021, arXiv:2010.11929,
/// eq. 1. Each tensor rank makes all rows, as there are few products, and hands on its own.
class PatchEmbedding {
 public:
  PatchEmbedding(const PatchShape& shape, Linear projection, Parameter first_tokens,
                 Parameter positions, const AxisPart& tensor)
      : shape_(shape),
        projection_(std::move(projection)),
        first_tokens_(std::move(first_tokens)),
        positions_(std::move(positions)),
        tensor_(tensor) {}

  /// [B, C, H, W] -> the rows of this rank [m, D], or its cost.
  [[nodiscard]] Features run(LayerPass& pass, const Features& images_BCHW);

  void add_parameters(std::vector<Parameter*>& list);

 private:
  void add_cost(LayerCosts& costs, std::int64_t samples, const Features& made) const;

  PatchShape shape_;
  Linear projection_;
  Parameter first_tokens_, positions_;
  AxisPart tensor_;
};

}  // namespace dstrain
