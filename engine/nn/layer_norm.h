#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/kernels/parameter.h"
#include "engine/nn/layer_cost.h"
#include "engine/nn/norm_run.h"

namespace dstrain {

/// Layer norm that adds a pending branch on its way in, so that the sum is read and written once.
class LayerNorm {
 public:
  static constexpr int kNumStatistics = 2;  ///< fp32 numbers kept of a row: mean and 1/std

  /// Files name the tensors PREFIX.weight and PREFIX.bias, both [width]; they start at one and
  /// zero.
  LayerNorm(const std::string& prefix, std::int64_t width, double eps);

  /// (x + delta, norm(x + delta)); without `delta` the first is x itself. All [M, D]. The norm's
  /// maxima are left in `maxima`, where that is defined (ops::maxima_for).
  [[nodiscard]] std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& x_MD,
                                                          const std::optional<at::Tensor>& delta_MD,
                                                          const at::Tensor& maxima = {});

  /// norm(x + delta) of each row, or of each pixel's channels, or its cost; `terms` are x, or x and
  /// delta. `keeps_output`: what follows keeps that, and it counts here.
  [[nodiscard]] Features run(LayerPass& pass, const std::vector<Features>& terms,
                             bool keeps_output = false) {
    return run_norm(*this, pass, terms, keeps_output);
  }
  /// forward() of x, or of x and delta, or its cost, which leaves gradients to what is around it.
  /// `hands_on`: the block hands on the sum, which another one counts.
  [[nodiscard]] NormedSum run_sum(LayerPass& pass, const std::vector<Features>& terms,
                                  bool hands_on = false, const at::Tensor& maxima = {}) {
    return run_norm_sum(*this, pass, terms, hands_on, maxima);
  }

  void add_parameters(std::vector<Parameter*>& list) {
    list.insert(list.end(), {&weight_, &bias_});
  }

  /// For `rows` rows, of which it keeps the statistics and, beside these, `kept` bytes.
  [[nodiscard]] LayerCost cost(std::int64_t rows, Bytes kept) const {
    LayerCost cost{.name = layer_name_of(weight_),
                   .saved_bytes = kept + kNumStatistics * rows * kFloatBytes};
    count(weight_, cost);
    count(bias_, cost);
    return cost;
  }

 private:
  Parameter weight_;
  Parameter bias_;
  double eps_;
};

}  // namespace dstrain
