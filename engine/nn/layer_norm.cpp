#include "engine/nn/layer_norm.h"

#include "engine/kernels/ops.h"

namespace dstrain {

LayerNorm::LayerNorm(const std::string& prefix, std::int64_t width, double eps) : eps_(eps) {
  weight_.hold({{prefix + ".weight", {width}}});
  weight_.init = Init::ones;
  bias_.hold({{prefix + ".bias", {width}}});
}

std::pair<at::Tensor, at::Tensor> LayerNorm::forward(const at::Tensor& x_MD,
                                                     const std::optional<at::Tensor>& delta_MD,
                                                     const at::Tensor& maxima) {
  return ops::add_layer_norm(x_MD, delta_MD, weight_, bias_, eps_, maxima);
}

}  // namespace dstrain
