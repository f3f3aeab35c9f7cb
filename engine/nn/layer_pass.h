#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/stable_hash.h"
#include "engine/nn/call.h"
#include "engine/nn/feature_shape.h"
#include "engine/nn/layer_costs.h"

namespace dstrain {

/// What a layer gets or gives: a tensor while layers run, its size alone while they are counted.
/// Images are [B, H, W, C], rows [M, C].
struct Features {
  at::Tensor tensor = {};
  at::Tensor maxima = {};  ///< ops::Measured
  BoundaryTensor size = {};
  bool counted = false;  ///< the block's input: another block counts what is kept of it
  bool owed = false;     ///< kept by the layer that made it, and counted by the next one

  [[nodiscard]] ops::Measured measured() const { return {tensor, maxima}; }
  [[nodiscard]] FeatureShape image() const {
    const std::vector<std::int64_t>& sizes = size.shape;
    return {sizes.at(0), sizes.at(1), sizes.at(2), sizes.at(3)};
  }
  [[nodiscard]] std::int64_t columns() const { return size.shape.back(); }
  /// Pixels, where it is an image.
  [[nodiscard]] std::int64_t rows() const {
    return std::accumulate(size.shape.begin(), size.shape.end() - 1, std::int64_t{1},
                           std::multiplies<>());
  }
  [[nodiscard]] Bytes bytes() const { return size.bytes(); }
  /// Another tensor of so many bytes for each number, while layers are counted.
  [[nodiscard]] Features sized(std::vector<std::int64_t> sizes) const {
    return {.size = {std::move(sizes), size.width}};
  }
  [[nodiscard]] Features as(const FeatureShape& image) const { return sized(image.sizes()); }
};

/// A pass over the layers of a block: it runs them on tensors, or counts by sizes alone what they
/// cost. A module's run() does either, so that a block's layers are written down once.
struct LayerPass {
  Call call = {};
  const Batch* batch = nullptr;           ///< null while layers are counted
  const BlockContext* context = nullptr;  ///< as `batch`
  LayerCosts* costs = nullptr;            ///< null while layers run

  /// Leaves out `share` in training, by `place` in the model.
  [[nodiscard]] ops::DropMask drop(double share, const std::string& place) const {
    if (share == 0 || !call.trains() || !call.dropout_seed.defined()) return {};
    return {.share = share, .seed = call.dropout_seed, .place = stable_hash(place)};
  }
};

}  // namespace dstrain
