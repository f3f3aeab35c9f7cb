#include "engine/nn/image_layers.h"

#include "engine/kernels/activation/ops_dropout.h"
#include "engine/kernels/activation/ops_layer_scale.h"
#include "engine/kernels/conv/ops_activation.h"
#include "engine/kernels/taken_sizes.h"
#include "engine/nn/image_operations.h"
#include "engine/nn/layer_cost.h"

namespace dstrain {

FeatureShape pooled(const FeatureShape& image, const ops::PoolShape& shape) {
  return {image.samples, shape.output_side(image.height), shape.output_side(image.width),
          image.channels};
}

Features max_pool(LayerPass& pass, const Features& x, const ops::PoolShape& shape,
                  const std::string& name) {
  if (pass.costs == nullptr) return {.tensor = ops::max_pool(x.tensor, shape)};
  const Features output = x.as(pooled(x.image(), shape));
  const Bytes in = x.bytes(), out = output.bytes(), places = output.image().elements();
  const std::int64_t windows = ceil_div(shape.kernel, shape.stride);  // along a side
  pass.costs->add(
      {.name = name, .saved_bytes = places + (x.owed ? in : 0)}, {{.bytes = in + out + places}},
      {{.vector = kPoolOperations * static_cast<double>(windows * windows * x.image().elements()),
        .bytes = in + out + places}});
  pass.costs->hold(out + (x.owed ? 0 : in), in + out);
  return output;
}

Features average_pool(LayerPass& pass, const Features& x, const std::string& name) {
  if (pass.costs == nullptr) return {.tensor = ops::average_pool(x.tensor)};
  pass.costs->require(SizeOf::images, x.image().samples, kernels::kPooledSamples);
  pass.costs->add({.name = name}, {{.bytes = x.bytes()}}, {{.bytes = x.bytes()}});
  return x.sized({x.image().samples, x.columns()});
}

Features average_grid(LayerPass& pass, const Features& x, std::int64_t side) {
  if (pass.costs != nullptr) {
    if (side == 1) pass.costs->require(SizeOf::images, x.image().samples, kernels::kPooledSamples);
    return x.sized({x.image().samples, x.columns() * side * side});
  }
  if (side == 1) return {.tensor = ops::average_pool(x.tensor)};
  const at::Tensor grid = ops::average_grid(x.tensor, side);
  return {.tensor = grid.permute({0, 3, 1, 2}).reshape({grid.size(0), -1})};
}

Features image_activation(LayerPass& pass, const Features& x, ops::ImageActivation activation,
                          const std::string& name) {
  if (pass.costs == nullptr) return {.tensor = ops::image_activation(x.tensor, activation)};
  pass.costs->add({.name = name, .saved_bytes = x.bytes()});
  return x.sized(x.size.shape);
}

Features dropout(LayerPass& pass, const Features& x, const ops::DropMask& mask) {
  if (pass.costs != nullptr || mask.share == 0) return x;
  return {.tensor = ops::dropout(x.tensor, mask)};
}

Features layer_scale(LayerPass& pass, const Features& branch, Parameter& scale,
                     const ops::DropMask& mask, const Features& residual) {
  if (pass.costs == nullptr)
    return {.tensor = ops::layer_scale(branch.tensor, scale, mask, residual.tensor)};
  const Bytes in = branch.bytes();
  LayerCost layer{.name = scale.parts.front().name, .saved_bytes = scale.trainable ? in : 0};
  count(scale, layer);
  pass.costs->add(std::move(layer), {{.bytes = 3 * in}}, {{.bytes = 4 * in}});
  // Products in fp32 for the scale's gradient.
  const Bytes products = branch.image().elements() * kFloatBytes;
  pass.costs->hold(0, in + 2 * products);
  return residual.sized(residual.size.shape);
}

Features copy(LayerPass& pass, const Features& x) {
  if (pass.costs == nullptr) return {.tensor = x.tensor.clone()};
  pass.costs->add_kernels({{.bytes = 2 * x.bytes()}}, {{.bytes = 2 * x.bytes()}});
  return x.sized(x.size.shape);
}

}  // namespace dstrain
