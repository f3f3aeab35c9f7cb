#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "engine/nn/batch_norm.h"
#include "engine/nn/conv.h"
#include "engine/nn/image_costs.h"

namespace dstrain {

/// A convolution without bias and the batch norm and activation behind it.
struct ConvNorm {
  Conv conv;
  BatchNorm norm;

  /// activation(norm(conv(x)) + residual); residual undefined: none. `left`: where the residual's
  /// gradient is left, if used.
  [[nodiscard]] at::Tensor forward(const at::Tensor& x_BHWC, const Call& call,
                                   const at::Tensor& residual = {},
                                   const ops::ResidualGradient& left = {}) {
    return norm.forward(conv.forward(x_BHWC), call, residual, left);
  }
  void add_parameters(std::vector<Parameter*>& list) {
    conv.add_parameters(list);
    norm.add_parameters(list);
  }
  void add_states(std::vector<BlockState*>& list) { norm.add_states(list); }
  /// `kept` as ImageCosts::conv has it.
  ImageShape add_costs(ImageCosts& costs, const ImageShape& input, bool kept,
                       bool residual = false) const {
    return costs.norm(norm, costs.conv(conv, input, kept), residual);
  }
};

}  // namespace dstrain
