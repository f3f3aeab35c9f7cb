#include "engine/nn/rms_norm.h"

#include "engine/kernels/ops.h"

namespace dstrain {

RmsNorm::RmsNorm(const std::string& prefix, std::int64_t width, double eps) : eps_(eps) {
  weight_.hold({{prefix + ".weight", {width}}});
  weight_.init = Init::ones;
}

std::pair<at::Tensor, at::Tensor> RmsNorm::forward(const at::Tensor& x_MD,
                                                   const std::optional<at::Tensor>& delta_MD,
                                                   const at::Tensor& maxima) {
  return ops::add_rms_norm(x_MD, delta_MD, weight_, eps_, maxima);
}

}  // namespace dstrain
