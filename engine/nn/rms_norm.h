#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/kernels/ops.h"
#include "engine/nn/layer_cost.h"
#include "engine/nn/norm_run.h"

namespace dstrain {

/// The weight of an RMS norm, whose factor starts at one; files name it `name`.
[[nodiscard]] Parameter rms_weight(const std::string& name, std::int64_t width,
                                   ops::RmsWeight holds);

/// Root-mean-square norm that adds a pending branch on its way in, so that the sum is read and
/// written once.
class RmsNorm {
 public:
  static constexpr int kNumStatistics = 1;  ///< fp32 numbers kept of a row: 1 / root mean square

  /// Files name the tensor PREFIX.weight, [width]; its factor starts at one.
  RmsNorm(const std::string& prefix, std::int64_t width, double eps,
          ops::RmsWeight holds = ops::RmsWeight::factor);

  /// (x + delta, norm(x + delta)); without `delta` the first is x itself. All [M, D]. The norm's
  /// maxima are left in `maxima`, where that is defined (ops::maxima_for).
  [[nodiscard]] std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& x_MD,
                                                          const std::optional<at::Tensor>& delta_MD,
                                                          const at::Tensor& maxima = {});

  /// As LayerNorm::run().
  [[nodiscard]] Features run(LayerPass& pass, const std::vector<Features>& terms,
                             bool keeps_output = false) {
    return run_norm(*this, pass, terms, keeps_output);
  }
  /// As LayerNorm::run_sum().
  [[nodiscard]] NormedSum run_sum(LayerPass& pass, const std::vector<Features>& terms,
                                  bool hands_on = false, const at::Tensor& maxima = {}) {
    return run_norm_sum(*this, pass, terms, hands_on, maxima);
  }

  void add_parameters(std::vector<Parameter*>& list) { list.push_back(&weight_); }

  /// For `rows` rows, of which it keeps the statistics and, beside these, `kept` bytes.
  [[nodiscard]] LayerCost cost(std::int64_t rows, Bytes kept) const {
    LayerCost cost{.name = layer_name_of(weight_),
                   .saved_bytes = kept + kNumStatistics * rows * kFloatBytes};
    count(weight_, cost);
    return cost;
  }

 private:
  Parameter weight_;
  double eps_;
  ops::RmsWeight holds_;
};

}  // namespace dstrain
