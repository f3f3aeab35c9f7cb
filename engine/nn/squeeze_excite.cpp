#include "engine/nn/squeeze_excite.h"

#include <cmath>
#include <utility>

#include "engine/kernels/taken_sizes.h"
#include "engine/nn/image_operations.h"
#include "engine/nn/layer_cost.h"

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

ops::ExciteCall SqueezeExcite::call() {
  return {.reduce = reduce_.weight(),
          .reduce_bias = *reduce_.bias(),
          .expand = expand_.weight(),
          .expand_bias = *expand_.bias(),
          .activation = options_.activation,
          .gate = options_.gate};
}

Features SqueezeExcite::run(LayerPass& pass, const Features& x, BatchNorm* before,
                            ConvNorm& depthwise, Conv& project) {
  if (pass.costs == nullptr)
    return {.tensor = depthwise.norm.forward_excited(x.tensor, pass.call, depthwise.conv, before,
                                                     call(), project)};
  const Features spread =
      depthwise.norm.counted_depthwise(*pass.costs, x, depthwise.conv, before, /*excited=*/true);
  return counted(*pass.costs, x, spread, project);
}

Features SqueezeExcite::counted(LayerCosts& costs, const Features& expanded, const Features& x,
                                const Conv& project) const {
  const std::int64_t samples = x.image().samples;
  costs.require(SizeOf::images, samples, kernels::kPooledSamples);
  // One kernel forward, which takes as long as two: one map waits for the other. Backward, such a
  // one for the gradients of the means and one for those of the maps, and one that takes them to
  // the norm. Each sample reads both maps.
  Flops flops = 0;
  Bytes maps = 0;
  for (const Linear* map : {&reduce_, &expand_}) {
    LayerCost layer = map->cost(samples, costs.compute_bytes(), /*input_is_kept=*/true);
    flops += layer.forward_flops;
    maps += samples * layer.parameters * costs.compute_bytes();
    costs.add(std::move(layer));
  }
  // The means, and in fp32 what is between the two maps and the gates.
  costs.add({.name = reduce_.parts().front().name + ".gates",
             .saved_bytes = samples * x.columns() * costs.compute_bytes() +
                            samples * (options_.squeezed + x.columns()) * kFloatBytes},
            {{.products = flops, .bytes = maps, .launches = 2}},
            {{.products = flops, .bytes = maps, .launches = 2}, {.launches = 2}, {}});
  // The means, then the product of the input times the gate of its sample's channel; the depthwise
  // norm has the passes that scale that, in backward once more.
  const Features output = x.as(project.output(x.image()));
  LayerCost layer = project.cost(x.image());
  const Flops product = layer.forward_flops;
  const Bytes in = x.bytes(), out = output.bytes(),
              weight = project.shape().weight_elements() * costs.compute_bytes(),
              gradient = project.shape().weight_elements() * kFloatBytes;
  std::vector<KernelCost> backward;
  if (project.weight().trainable)
    backward = {{.products = product, .bytes = in + out + gradient}, {}};
  backward.push_back({.products = product, .bytes = out + weight + in});
  const KernelCost means{.vector = kNormOperations * static_cast<double>(x.image().elements()),
                         .bytes = in};
  costs.add(std::move(layer), {means, {.products = product, .bytes = in + weight + out}},
            std::move(backward));
  costs.hold(in + out, expanded.bytes() + in + out);
  return output;
}

}  // namespace dstrain
