#include <utility>
#include <vector>

#include "engine/kernels/conv/depthwise_tiles.h"
#include "engine/nn/batch_norm.h"
#include "engine/nn/image_operations.h"

namespace dstrain {
namespace {

struct DepthwiseFlops {
  Flops forward, backward;
};
/// Strips of columns walk a little more than the image, and in forward load what their neighbours
/// load, too; in backward every tap is multiplied twice.
DepthwiseFlops depthwise_flops(const ops::ConvShape& shape, const FeatureShape& input,
                               const FeatureShape& output, int compute_bytes) {
  const kernels::DepthwiseShape walked{.samples = input.samples,
                                       .height = input.height,
                                       .width = input.width,
                                       .out_height = output.height,
                                       .out_width = output.width,
                                       .channels = input.channels,
                                       .kernel = static_cast<int>(shape.kernel),
                                       .stride = static_cast<int>(shape.stride),
                                       .before = static_cast<int>(shape.before)};
  const double taps = 2.0 * static_cast<double>(output.elements() * shape.kernel * shape.kernel),
               elements = static_cast<double>(input.elements());
  const DepthwiseFlops all = {.forward = taps + kNormOperations * elements,
                              .backward = 2 * taps + kNormGradientOperations * elements};
  if (!kernels::depthwise_fits(walked)) return all;  // a library's
  const kernels::DType dtype = compute_bytes == 4 ? kernels::DType::f32 : kernels::DType::bf16;
  const auto more = [](const kernels::DepthwiseTiles& tiles, std::int64_t width) {
    return static_cast<double>(tiles.strips * tiles.columns) / static_cast<double>(width);
  };
  const kernels::DepthwiseTiles forward = depthwise_forward_tiles(walked, dtype),
                                backward = depthwise_backward_tiles(walked, dtype);
  const double own = static_cast<double>(forward.columns) * static_cast<double>(shape.stride),
               loaded = own + static_cast<double>(shape.kernel - shape.stride);
  return {
      .forward = more(forward, output.width) * (taps + kNormOperations * elements * loaded / own),
      .backward = more(backward, input.width) * all.backward};
}

}  // namespace

Features BatchNorm::run_depthwise(LayerPass& pass, const Features& x, Conv& conv,
                                  BatchNorm* before) {
  if (pass.costs != nullptr)
    return counted_depthwise(*pass.costs, x, conv, before, /*excited=*/false);
  return {.tensor = forward_depthwise(x.tensor, pass.call, conv, before)};
}

Features BatchNorm::counted_depthwise(LayerCosts& costs, const Features& x, const Conv& conv,
                                      const BatchNorm* before, bool excited) const {
  const Features output = x.as(conv.output(x.image()));
  const Bytes in = x.bytes(), out = output.bytes(),
              weight = conv.shape().weight_elements() * costs.compute_bytes();
  // Sums; backward, those come out of the convolution's gradient.
  if (before != nullptr) before->add(costs, x, {{.bytes = in}, {}}, {{}, {.bytes = 3 * in}});
  // The convolution normalises what it reads and makes the sums of the norm behind it; its backward
  // forms that norm's gradient, too.
  const DepthwiseFlops flops =
      depthwise_flops(conv.shape(), x.image(), output.image(), costs.compute_bytes());
  costs.add(conv.cost(x.image()), {{}, {.vector = flops.forward, .bytes = in + out + weight}},
            {{.vector = flops.backward, .bytes = 2 * in + 2 * out + weight}, {}});
  const KernelCost sums{
      .vector =
          excited ? kNormGradientOperations * static_cast<double>(output.image().elements()) : 0,
      .bytes = (excited ? 3 : 2) * out};
  add(costs, output, {{}, {.bytes = 2 * out}}, {sums, {}});
  costs.hold(out, in + out);
  return output;
}

}  // namespace dstrain
