#include "engine/models/image/mobile_block.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/models/image/initial.h"

namespace dstrain {

std::int64_t multiple_of_8(double value) {
  constexpr std::int64_t kMultiple = 8;
  const std::int64_t rounded = std::max(
      kMultiple, static_cast<std::int64_t>(value + kMultiple / 2.0) / kMultiple * kMultiple);
  return static_cast<double>(rounded) < 0.9 * value ? rounded + kMultiple : rounded;
}

ops::ConvShape mobile_conv(std::int64_t in, std::int64_t out, std::int64_t kernel,
                           std::int64_t stride, std::int64_t side, ImagePadding padding) {
  ops::ConvShape shape = {.in = in, .out = out, .kernel = kernel, .stride = stride};
  if (padding == ImagePadding::symmetric) {
    shape.before = shape.after = (kernel - 1) / 2;
  } else {
    const std::int64_t outputs = (side + stride - 1) / stride;
    const std::int64_t zeros = std::max<std::int64_t>((outputs - 1) * stride + kernel - side, 0);
    shape.before = zeros / 2;
    shape.after = zeros - shape.before;
  }
  return shape;
}

ConvNorm mobile_conv_norm(const std::string& name, const ops::ConvShape& shape,
                          const MobileRules& rules, ops::ImageActivation activation) {
  ops::ConvShape fan = shape;
  if (rules.fan_of_group) fan.out /= shape.groups;
  return {Conv(name + ".0", shape, he_normal(fan)),
          BatchNorm(name + ".1", shape.out, rules.norm, activation)};
}

std::unique_ptr<InvertedResidual> mobile_block(const std::string& name, const MobileBlock& block,
                                               const MobileRules& rules, FeatureSize& size) {
  const FeatureSize input = size;
  int layer = 0;
  const auto next_name = [&] { return fmt::format("{}.block.{}", name, layer++); };
  std::optional<ConvNorm> expand;
  if (block.hidden != input.channels)
    expand = mobile_conv_norm(next_name(), {.in = input.channels, .out = block.hidden}, rules,
                              block.activation);
  ops::ConvShape spread = mobile_conv(block.hidden, block.hidden, block.kernel, block.stride,
                                      input.height, rules.padding);
  spread.groups = block.hidden;
  ConvNorm depthwise = mobile_conv_norm(next_name(), spread, rules, block.activation);
  std::optional<SqueezeExcite> excite;
  if (block.excite) excite.emplace(next_name(), block.hidden, *block.excite);
  ConvNorm project = mobile_conv_norm(next_name(), {.in = block.hidden, .out = block.channels},
                                      rules, ops::ImageActivation::none);
  size = {spread.output_side(input.height), spread.output_side(input.width), block.channels};
  return std::make_unique<InvertedResidual>(
      name, input,
      InvertedLayers{.expand = std::move(expand),
                     .depthwise = std::move(depthwise),
                     .excite = std::move(excite),
                     .project = std::move(project),
                     .residual = block.stride == 1 && block.channels == input.channels,
                     .drop_path = block.drop_path});
}

std::string timm_mobile_layer(const std::string& layer, bool expands, bool excites) {
  struct Layer {
    std::string_view conv, norm;
  };
  std::vector<Layer> layers = {{"conv_dw.", "bn1."}, {"conv_pw.", "bn2."}};
  if (expands) layers = {{"conv_pw.", "bn1."}, {"conv_dw.", "bn2."}, {"conv_pwl.", "bn3."}};
  constexpr Layer kExcite = {"se.conv_reduce.", "se.conv_expand."};
  if (excites) layers.insert(layers.end() - 1, kExcite);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const bool pair = layers[i].conv != kExcite.conv;
    const std::string prefix = fmt::format("block.{}.", i);
    const std::string first = prefix + (pair ? "0." : "fc1."),
                      second = prefix + (pair ? "1." : "fc2.");
    if (layer.starts_with(first)) return std::string(layers[i].conv) + layer.substr(first.size());
    if (layer.starts_with(second)) return std::string(layers[i].norm) + layer.substr(second.size());
  }
  return layer;
}

}  // namespace dstrain
