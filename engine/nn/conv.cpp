#include "engine/nn/conv.h"

namespace dstrain {

Conv::Conv(const std::string& name, const ops::ConvShape& shape, const InitialWeights& init,
           bool has_bias)
    : shape_(shape), has_bias_(has_bias) {
  weight_.hold(
      {{name + ".weight", {shape.out, shape.in / shape.groups, shape.kernel, shape.kernel}}});
  weight_.init = init.kind;
  weight_.init_std = init.std;
  bias_.hold({{name + ".bias", {shape.out}}});
}

LayerCost Conv::cost(const ImageShape& input) const {
  const ImageShape out = output(input);
  LayerCost cost{.name = layer_name_of(weight_)};
  cost.forward_flops = 2.0 * static_cast<double>(out.samples * out.height * out.width) *
                       static_cast<double>(shape_.weight_elements());
  count(weight_, cost);
  if (has_bias_) count(bias_, cost);
  return cost;
}

}  // namespace dstrain
