#include "engine/nn/conv.h"

#include <utility>

#include "engine/kernels/conv/columns.h"
#include "engine/nn/image_layers.h"
#include "engine/nn/image_operations.h"
#include "engine/nn/layer_cost.h"

namespace dstrain {
namespace {

/// Size of the windows of the image, where a GPU convolves by them in memory.
Bytes columns_bytes(const ops::ConvShape& shape, const FeatureShape& output, int compute_bytes) {
  if (!ops::by_columns(shape) || ops::by_direct_kernel(shape, compute_bytes)) return 0;
  return output.samples * output.height * output.width * ops::columns_width(shape) * compute_bytes;
}

}  // namespace

Conv::Conv(const std::string& name, const ops::ConvShape& shape, const InitialWeights& init,
           bool has_bias)
    : shape_(shape), has_bias_(has_bias) {
  weight_.hold(
      {{name + ".weight", {shape.out, shape.in / shape.groups, shape.kernel, shape.kernel}}});
  weight_.init = init.kind;
  weight_.init_std = init.std;
  bias_.hold({{name + ".bias", {shape.out}}});
}

LayerCost Conv::cost(const FeatureShape& input) const {
  const FeatureShape out = output(input);
  LayerCost cost{.name = layer_name_of(weight_)};
  cost.forward_flops = 2.0 * static_cast<double>(out.samples * out.height * out.width) *
                       static_cast<double>(shape_.weight_elements());
  count(weight_, cost);
  if (has_bias_) count(bias_, cost);
  return cost;
}

Features Conv::run(LayerPass& pass, const Features& x, ops::ImageActivation activation,
                   const ops::ResidualGradient& left) {
  if (pass.costs == nullptr) return {.tensor = forward(x.tensor, activation, left)};
  return counted(*pass.costs, x,
                 activation == ops::ImageActivation::none ? After::nothing : After::relu);
}

Features Conv::run_pool(LayerPass& pass, const Features& x, const ops::PoolShape& pool,
                        const std::string& pool_name) {
  if (pass.costs == nullptr) return {.tensor = forward_pool(x.tensor, pool)};
  const Features convolved = counted(*pass.costs, x, After::relu_and_pool);
  const Features output = convolved.as(pooled(convolved.image(), pool));
  const Bytes in = convolved.bytes(), out = output.bytes(), places = output.image().elements();
  pass.costs->add({.name = pool_name, .saved_bytes = places}, {{.bytes = in + out + places}},
                  {{.bytes = in + out + places}});
  pass.costs->hold(out + in, in + out);
  return output;
}

Features Conv::counted(LayerCosts& costs, const Features& x, After after) const {
  const bool activated = after == After::relu, pooled = after == After::relu_and_pool;
  const int width = costs.compute_bytes();
  const FeatureShape shape = output(x.image());
  Features made = x.as(shape);
  made.owed = activated;
  LayerCost layer = cost(x.image());
  const bool trains = weight_.trainable;
  if (!x.counted && trains) layer.saved_bytes += x.bytes();
  const Bytes in = x.bytes(), out = made.bytes(), weight = shape_.weight_elements() * width,
              gradient = shape_.weight_elements() * kFloatBytes;
  const Bytes columns = columns_bytes(shape_, shape, width), read = columns > 0 ? columns : in;
  const bool depthwise = shape_.depthwise(), few = ops::by_columns(shape_),
             direct = few && columns == 0;
  const auto product = [&](Bytes moved) {
    return KernelCost{.products = depthwise ? 0 : layer.forward_flops,
                      .vector = depthwise ? kLibraryDepthwise * layer.forward_flops : 0,
                      .bytes = moved};
  };
  const KernelCost windows{.vector = kColumnOperations * static_cast<double>(columns / width),
                           .bytes = in + columns};
  std::vector<KernelCost> forward, backward;
  if (columns > 0) forward.push_back(windows);
  forward.push_back(product(read + weight + out));
  const bool passes = !pooled && (activated || has_bias_);
  if (passes && !direct) forward.push_back({.bytes = 2 * out});
  if (passes) backward.push_back({.bytes = (activated ? 3 : 1) * out});
  if (trains) {
    if (columns > 0) backward.push_back(windows);
    backward.push_back(product(read + out + gradient));
    backward.push_back({});  // clears the gradient, or adds parts of it
  }
  // Images of so few channels are data, which need no gradient.
  if (!few) backward.push_back(product(out + weight + in));
  costs.add(std::move(layer), std::move(forward), std::move(backward));
  // A direct convolution adds up parts of its weight's gradient.
  const Bytes parts =
      direct && trains
          ? gradient * kernels::direct_partials(shape.samples, static_cast<int>(shape.height),
                                                static_cast<int>(shape.width))
          : 0;
  // A ReLU's gradient is made beside the output's.
  costs.hold(out + columns, (activated ? out : 0) + out + (few ? columns + parts : in));
  return made;
}

}  // namespace dstrain
