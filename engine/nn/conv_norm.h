#pragma once

#include <vector>

#include "engine/nn/batch_norm.h"
#include "engine/nn/conv.h"

namespace dstrain {

/// A convolution without bias and the batch norm and activation behind it.
struct ConvNorm {
  Conv conv;
  BatchNorm norm;

  /// activation(norm(conv(x)) + what is added), or its cost.
  [[nodiscard]] Features run(LayerPass& pass, const Features& x, const BatchNorm::Added& added) {
    return norm.run(pass, conv.run(pass, x), added);
  }
  [[nodiscard]] Features run(LayerPass& pass, const Features& x) { return run(pass, x, {}); }
  /// activation(norm(conv(x)) + other_norm(other_conv(other_x))), or its cost; the other one has no
  /// activation. `leaves` as ops::conv has it for the other convolution.
  [[nodiscard]] Features run_pair(LayerPass& pass, const Features& x, ConvNorm& other,
                                  const Features& other_x, const ops::ResidualGradient& leaves);

  void add_parameters(std::vector<Parameter*>& list) {
    conv.add_parameters(list);
    norm.add_parameters(list);
  }
  void add_states(std::vector<BlockState*>& list) { norm.add_states(list); }
};

}  // namespace dstrain
