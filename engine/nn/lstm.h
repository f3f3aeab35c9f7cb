#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "engine/kernels/parameter.h"
#include "engine/nn/layer_pass.h"

namespace dstrain {

/// An LSTM as torch.nn.LSTM(batch_first=True) has it, from a state and a cell of zeros.
///
/// Legend: B samples, T steps, F features, H width.
class Lstm {
 public:
  /// Files name the tensors of layer l PREFIX.weight_ih_lL [4H, F or H], .weight_hh_lL [4H, H],
  /// .bias_ih_lL and .bias_hh_lL [4H], gates in the order input, forget, cell, output; all are
  /// drawn uniformly within 1 / sqrt(H).
  Lstm(const std::string& prefix, std::int64_t features, std::int64_t width, std::int64_t layers);

  /// x [B * T, F], the steps of a sample one after the other -> the last state [B, H].
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, std::int64_t samples);

  void add_parameters(std::vector<Parameter*>& list);
  [[nodiscard]] std::int64_t width() const { return width_; }
  /// forward() of samples of `steps` steps, or its cost.
  [[nodiscard]] Features run(LayerPass& pass, const Features& x, std::int64_t steps);

 private:
  void add_cost(LayerCosts& costs, std::int64_t rows, std::int64_t steps) const;

  struct Layer {
    std::int64_t inputs = 0;
    Parameter of_input, of_state, input_bias, state_bias;
  };

  std::string prefix_;
  std::int64_t width_;
  std::deque<Layer> layers_;  ///< whose parameters stay where they are
};

}  // namespace dstrain
