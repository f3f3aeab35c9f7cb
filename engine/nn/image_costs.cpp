#include "engine/nn/image_costs.h"

#include <algorithm>
#include <utility>

#include "engine/kernels/conv/columns.h"

namespace dstrain {

ImageCosts::ImageCosts(std::string block, const ImageShape& input, int compute_bytes)
    : compute_bytes_(compute_bytes), input_(input.bytes(compute_bytes)) {
  cost_.name = std::move(block);
}

Bytes ImageCosts::columns_bytes(const ops::ConvShape& shape, const ImageShape& output) const {
  if (!ops::by_columns(shape)) return 0;
  return output.samples * output.height * output.width * ops::columns_width(shape) * compute_bytes_;
}

void ImageCosts::hold(Bytes forward, Bytes backward) {
  cost_.forward_workspace = std::max(cost_.forward_workspace, forward);
  cost_.backward_workspace = std::max(cost_.backward_workspace, backward);
}

void ImageCosts::add(LayerCost layer, Bytes forward_traffic, Bytes backward_traffic) {
  layers_.push_back(std::move(layer));
  cost_.forward_traffic += forward_traffic;
  cost_.backward_traffic += backward_traffic;
}

ImageShape ImageCosts::conv(const Conv& conv, const ImageShape& input, bool kept, bool activated) {
  const ImageShape output = conv.output(input);
  LayerCost layer = conv.cost(input);
  if (!kept && conv.weight().trainable) layer.saved_bytes += bytes(input);
  const Bytes in = bytes(input), out = bytes(output),
              weight = conv.shape().weight_elements() * compute_bytes_;
  const Bytes columns = columns_bytes(conv.shape(), output),
              added = activated || conv.has_bias() ? 2 * out : 0;
  // Backward reads the output's gradient for the input's and the weight's.
  add(std::move(layer), in + out + weight + 2 * columns + added,
      2 * out + 2 * in + weight + conv.shape().weight_elements() * kFloatBytes + 2 * columns +
          (activated ? 3 * out : 0));
  // A ReLU's gradient is made beside the output's.
  hold(out + columns, (activated ? out : 0) + out + (columns > 0 ? columns : in));
  return output;
}

ImageShape ImageCosts::norm(const BatchNorm& norm, const ImageShape& input, bool residual) {
  const Bytes in = bytes(input);
  add(norm.cost(input, compute_bytes_), (residual ? 4 : 3) * in, (residual ? 6 : 5) * in);
  norm.add_exchanges(cost_.exchanges);
  hold(in, (residual ? 3 : 2) * in);
  return input;
}

ImageShape ImageCosts::depthwise_norm(const BatchNorm* before, const Conv& conv,
                                      const BatchNorm& after, const ImageShape& input) {
  const ImageShape output = conv.output(input);
  const Bytes in = bytes(input), out = bytes(output),
              weight = conv.shape().weight_elements() * compute_bytes_;
  if (before != nullptr) {
    add(before->cost(input, compute_bytes_), in, 3 * in);
    before->add_exchanges(cost_.exchanges);
  }
  // The convolution makes the sums of the norm behind it, and forms that norm's gradient.
  add(conv.cost(input), in + out + weight, 2 * in + 2 * out + weight);
  add(after.cost(output, compute_bytes_), 2 * out, 2 * out);
  after.add_exchanges(cost_.exchanges);
  hold(out, in + out);
  return output;
}

ImageShape ImageCosts::max_pool(const std::string& name, const ops::PoolShape& shape,
                                const ImageShape& input, bool activated) {
  const ImageShape output = {input.samples, shape.output_side(input.height),
                             shape.output_side(input.width), input.channels};
  const Bytes in = bytes(input), out = bytes(output), places = output.elements();
  add({.name = name, .saved_bytes = places + (activated ? in : 0)}, in + out + places,
      in + out + places);
  hold(out + (activated ? 0 : in), in + out);
  return output;
}

ImageShape ImageCosts::excited_conv(const Conv& conv, const ImageShape& expanded,
                                    const ImageShape& input) {
  const ImageShape output = conv.output(input);
  const Bytes in = bytes(input), out = bytes(output),
              weight = conv.shape().weight_elements() * compute_bytes_;
  // The means, and the scaled input, which is made again in backward.
  add(conv.cost(input), 2 * in + out + weight, 4 * in + 2 * out + weight);
  hold(in + out, bytes(expanded) + in + out);
  return output;
}

void ImageCosts::linear(const Linear& linear, std::int64_t rows, bool kept) {
  LayerCost layer = linear.cost(rows, compute_bytes_, kept);
  const Bytes out = rows * linear.parts().front().rows * compute_bytes_,
              moved = layer.saved_bytes + out + layer.parameters * compute_bytes_;
  layer.weight_flops = 0;
  layer.held_bytes = 0;
  const Bytes gradient = layer.parameters * kFloatBytes;
  add(std::move(layer), moved, 2 * moved + gradient);
}

BlockCost ImageCosts::finish(const ImageShape& output) {
  return finish(std::vector<BoundaryTensor>{{output.sizes(), compute_bytes_}});
}

BlockCost ImageCosts::finish(std::vector<BoundaryTensor> boundary) {
  cost_.take(std::exchange(layers_, {}));
  cost_.boundary = std::move(boundary);
  cost_.backward_workspace += input_;
  return std::move(cost_);
}

}  // namespace dstrain
