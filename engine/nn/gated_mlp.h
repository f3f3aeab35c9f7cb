#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "engine/nn/linear.h"
#include "engine/nn/workspace.h"

namespace dstrain {

/// What files call the three linears of a gated feed-forward branch.
struct GatedMlpNames {
  std::string gate, up;  ///< without a name for `up` that of both, gate first, in one matrix
  std::string down;
};

struct GateOptions {
  ops::GateActivation gate = ops::GateActivation::silu;
  bool has_biases = false;  ///< of all three maps
};

/// The gated feed-forward branch, (act(x gate^T) * (x up^T)) down^T; gate and up are one product.
/// Tensor ranks have parts of its hidden width. Shazeer 2020, arXiv:2002.05202, eq. 5.
class GatedMlp {
 public:
  GatedMlp(const GatedMlpNames& names, std::int64_t width, std::int64_t mlp_width,
           const InitialWeights& init, const AxisPart& tensor = {},
           const GateOptions& options = {});

  /// x [m, D] -> [m, D], the rows of this rank.
  [[nodiscard]] at::Tensor forward(const ops::Measured& x_mD, const Call& call = {});
  /// forward(), or its cost beside what its block holds.
  [[nodiscard]] Features run(LayerPass& pass, const Features& x, const Workspace& beside);
  /// Room for the maxima of its input, which is like `x`, or undefined (ops::maxima_for).
  [[nodiscard]] at::Tensor maxima_for_input(const LayerPass& pass, const Features& x) const {
    return gate_up_.maxima_for_input(pass, x);
  }

  /// Its output becomes `scale` times what it was.
  void scale_output(double scale) { down_.scale_output(scale); }

  void add_parameters(std::vector<Parameter*>& list);
  void add_linears(std::vector<Linear*>& list) { list.insert(list.end(), {&gate_up_, &down_}); }
  /// For `rows` rows of all ranks. Another layer may keep its input.
  [[nodiscard]] std::vector<LayerCost> layers(std::int64_t rows, int compute_bytes,
                                              bool input_is_kept = false) const;
  [[nodiscard]] Workspace workspace(std::int64_t rows, int compute_bytes) const;

 private:
  std::int64_t mlp_width_;  ///< of this rank
  AxisPart tensor_;
  GateOptions options_;
  Linear gate_up_;
  Linear down_;
};

}  // namespace dstrain
