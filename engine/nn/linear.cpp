#include "engine/nn/linear.h"

#include "engine/kernels/ops.h"

namespace dstrain {

Linear::Linear(const std::vector<std::string>& prefixes,
               const std::vector<std::int64_t>& weight_shape, double init_std) {
  for (const std::string& prefix : prefixes) {
    weight_.parts.push_back({prefix + ".weight", weight_shape});
    bias_.parts.push_back({prefix + ".bias", {weight_shape[0]}});
  }
  weight_.shape = weight_shape;
  weight_.shape[0] *= static_cast<std::int64_t>(prefixes.size());
  weight_.init = Init::truncated_normal;
  weight_.init_std = init_std;
  bias_.shape = {weight_.shape[0]};
}

at::Tensor Linear::forward(const at::Tensor& x_MK) { return ops::linear(x_MK, weight_, bias_); }

at::Tensor Linear::forward_gelu(const at::Tensor& x_MK) {
  return ops::linear_gelu(x_MK, weight_, bias_);
}

}  // namespace dstrain
