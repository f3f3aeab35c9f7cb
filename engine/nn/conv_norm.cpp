#include "engine/nn/conv_norm.h"

namespace dstrain {

Features ConvNorm::run_pair(LayerPass& pass, const Features& x, ConvNorm& other,
                            const Features& other_x, const ops::ResidualGradient& leaves) {
  if (pass.costs != nullptr) {
    const Features convolved = conv.run(pass, x);
    norm.add_cost(*pass.costs, convolved, /*residual=*/true);
    other.norm.add_cost_beside(*pass.costs, other.conv.run(pass, other_x));
    return convolved.sized(convolved.size.shape);
  }
  // It runs behind the branch's first product, so that autograd comes back to it before that.
  const at::Tensor beside =
      other.conv.forward(other_x.tensor, ops::ImageActivation::none, {}, leaves);
  return {.tensor = norm.forward_pair(conv.forward(x.tensor), pass.call, beside, other.norm)};
}

}  // namespace dstrain
