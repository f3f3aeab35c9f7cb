#include "engine/nn/rms_norm.h"

namespace dstrain {

Parameter rms_weight(const std::string& name, std::int64_t width, ops::RmsWeight holds) {
  Parameter weight;
  weight.hold({{name, {width}}});
  weight.init = holds == ops::RmsWeight::less_one ? Init::zeros : Init::ones;
  return weight;
}

RmsNorm::RmsNorm(const std::string& prefix, std::int64_t width, double eps, ops::RmsWeight holds)
    : weight_(rms_weight(prefix + ".weight", width, holds)), eps_(eps), holds_(holds) {}

std::pair<at::Tensor, at::Tensor> RmsNorm::forward(const at::Tensor& x_MD,
                                                   const std::optional<at::Tensor>& delta_MD,
                                                   const at::Tensor& maxima) {
  return ops::add_rms_norm(x_MD, delta_MD, weight_, eps_, maxima, holds_);
}

}  // namespace dstrain
