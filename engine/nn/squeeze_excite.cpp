#include "engine/nn/squeeze_excite.h"

#include <cmath>

#include "engine/kernels/conv/ops_activation.h"
#include "engine/kernels/pool/ops_pool.h"

namespace dstrain {
namespace {

/// A 1x1 convolution of the means, as torchvision draws its first weights.
Linear channel_map(const std::string& name, std::int64_t inputs, std::int64_t outputs) {
  return {{{name, outputs}},
          {inputs, 1, 1},
          {.kind = Init::normal, .std = std::sqrt(2 / static_cast<double>(outputs))}};
}

}  // namespace

SqueezeExcite::SqueezeExcite(const std::string& prefix, std::int64_t channels,
                             const SqueezeExciteOptions& options)
    : options_(options),
      reduce_(channel_map(prefix + ".fc1", channels, options.squeezed)),
      expand_(channel_map(prefix + ".fc2", options.squeezed, channels)) {}

at::Tensor SqueezeExcite::forward_conv(const at::Tensor& x_BHWC, Conv& conv) {
  const at::Tensor means = ops::average_pool(x_BHWC);
  const at::Tensor z =
      expand_.forward(ops::image_activation(reduce_.forward(means), options_.activation));
  return ops::excited_conv(x_BHWC, z, options_.gate, conv.shape(), conv.weight());
}

ImageShape SqueezeExcite::add_costs(ImageCosts& costs, const ImageShape& input,
                                    const Conv& conv) const {
  const std::int64_t samples = input.samples;
  costs.linear(reduce_, samples);
  costs.add({.name = reduce_.parts().front().name + ".activation",
             .saved_bytes = costs.bytes({samples, 1, 1, options_.squeezed})});
  costs.linear(expand_, samples);
  return costs.excited_conv(conv, input);
}

}  // namespace dstrain
