#include "engine/nn/squeeze_excite.h"

#include <cmath>

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

ImageShape SqueezeExcite::add_costs(ImageCosts& costs, const ImageShape& expanded,
                                    const ImageShape& input, const Conv& project) const {
  const std::int64_t samples = input.samples;
  // One kernel forward, which takes as long as two: one map waits for the other. Backward, such a
  // one for the gradients of the means and one for those of the maps, and one that takes them to
  // the norm. Each sample reads both maps.
  Flops flops = 0;
  Bytes maps = 0;
  for (const Linear* map : {&reduce_, &expand_}) {
    LayerCost layer = map->cost(samples, costs.compute_bytes(), /*input_is_kept=*/true);
    put_nothing_off(layer);
    flops += layer.forward_flops;
    maps += samples * layer.parameters * costs.compute_bytes();
    costs.add(std::move(layer));
  }
  // The means, and in fp32 what is between the two maps and the gates.
  costs.add({.name = reduce_.parts().front().name + ".gates",
             .saved_bytes =
                 costs.bytes({samples, 1, 1, input.channels}) +
                 samples * (options_.squeezed + input.channels) * static_cast<Bytes>(kFloatBytes)},
            {{.products = flops, .bytes = maps, .launches = 2}},
            {{.products = flops, .bytes = maps, .launches = 2}, {.launches = 2}, {}});
  return costs.excited_conv(project, expanded, input);
}

}  // namespace dstrain
