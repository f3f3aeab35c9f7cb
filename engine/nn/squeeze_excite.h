#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "engine/kernels/excite/excite.h"
#include "engine/nn/conv.h"
#include "engine/nn/image_costs.h"
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

  /// For BatchNorm::forward_excited.
  [[nodiscard]] ops::ExciteCall call() {
    return {.reduce = reduce_.weight(),
            .reduce_bias = *reduce_.bias(),
            .expand = expand_.weight(),
            .expand_bias = *expand_.bias(),
            .activation = options_.activation,
            .gate = options_.gate};
  }

  void add_parameters(std::vector<Parameter*>& list) {
    reduce_.add_parameters(list);
    expand_.add_parameters(list);
  }
  /// Costs of the gates and of `project` behind them. `expanded` and `input`: what the depthwise
  /// convolution reads and gives.
  ImageShape add_costs(ImageCosts& costs, const ImageShape& expanded, const ImageShape& input,
                       const Conv& project) const;

 private:
  SqueezeExciteOptions options_;
  Linear reduce_, expand_;
};

}  // namespace dstrain
