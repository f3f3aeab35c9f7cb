#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "engine/nn/linear.h"
#include "engine/nn/workspace.h"

namespace dstrain {

/// What files call the two linears of a feed-forward branch.
struct MlpNames {
  std::string up, down;
};

/// The feed-forward branch: linear, GELU, linear, both with a bias. Tensor ranks have parts of its
/// hidden width.
class Mlp {
 public:
  Mlp(const MlpNames& names, std::int64_t width, std::int64_t mlp_width, ops::Gelu kind,
      const InitialWeights& init, const AxisPart& tensor = {});

  /// x [m, D] -> [m, D], the rows of this rank.
  [[nodiscard]] at::Tensor forward(const ops::Measured& x_mD, const Call& call = {});
  /// forward() of each pixel or row, or its cost beside what its block holds.
  [[nodiscard]] Features run(LayerPass& pass, const Features& x, const Workspace& beside);
  /// Room for the maxima of its input, which is like `x`, or undefined (ops::maxima_for).
  [[nodiscard]] at::Tensor maxima_for_input(const LayerPass& pass, const Features& x) const {
    return up_.maxima_for_input(pass, x);
  }

  void add_parameters(std::vector<Parameter*>& list);
  void add_linears(std::vector<Linear*>& list) { list.insert(list.end(), {&up_, &down_}); }
  /// For `rows` rows of all ranks.
  [[nodiscard]] std::vector<LayerCost> layers(std::int64_t rows, int compute_bytes) const;
  [[nodiscard]] Workspace workspace(std::int64_t rows, int compute_bytes) const;

 private:
  [[nodiscard]] bool has_adapters() const;

  std::int64_t width_;
  std::int64_t mlp_width_;  ///< of this rank
  AxisPart tensor_;
  ops::Gelu kind_;
  Linear up_;
  Linear down_;
};

}  // namespace dstrain
