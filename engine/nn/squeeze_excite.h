#pragma once

#include <string>
#include <vector>

#include "engine/kernels/excite/excite.h"
#include "engine/nn/conv_norm.h"
#include "engine/nn/layer_pass.h"
#include "engine/nn/linear.h"

namespace dstrain {

struct SqueezeExciteOptions {
  std::int64_t squeezed = 0;                                     ///< channels between the two maps
  ops::ImageActivation activation = ops::ImageActivation::relu;  ///< between them
  ops::Gate gate = ops::Gate::sigmoid;
};

/// Scales each channel by a gate that follows from the means of all channels: two 1x1 convolutions
/// of the means with a bias each, and a gate. Hu et al. 2018, arXiv:1709.01507, sec. 3.
class SqueezeExcite {
 public:
  /// Files name the tensors PREFIX.fc1.weight [squeezed, channels, 1, 1], PREFIX.fc2.weight
  /// [channels, squeezed, 1, 1] and their biases, which start at zero.
  SqueezeExcite(const std::string& prefix, std::int64_t channels,
                const SqueezeExciteOptions& options);

  /// BatchNorm::forward_excited() of `depthwise` and of `project`, or its cost; `before` as there.
  [[nodiscard]] Features run(LayerPass& pass, const Features& x, BatchNorm* before,
                             ConvNorm& depthwise, Conv& project);

  void add_parameters(std::vector<Parameter*>& list) {
    reduce_.add_parameters(list);
    expand_.add_parameters(list);
  }

 private:
  [[nodiscard]] ops::ExciteCall call();
  /// Costs of the gates, and of `project` behind them. `expanded` and `x`: what the depthwise
  /// convolution reads and gives.
  [[nodiscard]] Features counted(LayerCosts& costs, const Features& expanded, const Features& x,
                                 const Conv& project) const;
  SqueezeExciteOptions options_;
  Linear reduce_, expand_;
};

}  // namespace dstrain
