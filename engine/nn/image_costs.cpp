#include "engine/nn/image_costs.h"

#include <algorithm>
#include <utility>

#include "engine/kernels/conv/columns.h"
#include "engine/kernels/conv/depthwise_tiles.h"

namespace dstrain {
namespace {

// Operations of kernels that instructions bind, not memory, fitted with Machine::vector_flops_per_s
// to the times of engine/kernels/benchmarks/conv.tsv.

/// For a number of a depthwise convolution's input beside its taps: to fp32, norm, activation; in
/// backward the same again, and the gradients of activation and norm. So does what takes means of
/// what is normalised, and sums for the gradients of gates.
constexpr double kNormOperations = 12, kNormGradientOperations = 37;
/// For a number of the windows of an image: where it lies.
constexpr double kColumnOperations = 17;
/// For each operation of a depthwise convolution that cuDNN runs. Fitted to a step of ConvNeXt-tiny
/// on an H100, 64 images of 224 px, with windows of 7 x 7.
constexpr double kLibraryDepthwise = 2.6;
/// For a number of an image and each window that may have taken it, in max pooling's backward.
constexpr double kPoolOperations = 9;

struct DepthwiseFlops {
  Flops forward, backward;
};
/// Strips of columns walk a little more than the image, and in forward load what their neighbours
/// load, too; in backward every tap is multiplied twice.
DepthwiseFlops depthwise_flops(const ops::ConvShape& shape, const ImageShape& input,
                               const ImageShape& output, int compute_bytes) {
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

ImageCosts::ImageCosts(std::string block, const ImageShape& input, int compute_bytes)
    : compute_bytes_(compute_bytes), input_(input.bytes(compute_bytes)) {
  cost_.name = std::move(block);
}

Bytes ImageCosts::columns_bytes(const ops::ConvShape& shape, const ImageShape& output) const {
  if (!ops::by_columns(shape) || ops::by_direct_kernel(shape, compute_bytes_)) return 0;
  return output.samples * output.height * output.width * ops::columns_width(shape) * compute_bytes_;
}

void ImageCosts::hold(Bytes forward, Bytes backward) {
  cost_.forward_workspace = std::max(cost_.forward_workspace, forward);
  cost_.backward_workspace = std::max(cost_.backward_workspace, backward);
}

void ImageCosts::add(LayerCost layer, std::vector<KernelCost> forward,
                     std::vector<KernelCost> backward) {
  layers_.push_back(std::move(layer));
  for (KernelCost& kernel : forward) cost_.forward_kernels.push_back(kernel);
  for (KernelCost& kernel : backward) cost_.backward_kernels.push_back(kernel);
}

ImageShape ImageCosts::conv(const Conv& conv, const ImageShape& input, bool kept, After after) {
  const bool activated = after == After::relu, pooled = after == After::relu_and_pool;
  const ImageShape output = conv.output(input);
  LayerCost layer = conv.cost(input);
  const bool trains = conv.weight().trainable;
  if (!kept && trains) layer.saved_bytes += bytes(input);
  const Bytes in = bytes(input), out = bytes(output),
              weight = conv.shape().weight_elements() * compute_bytes_,
              gradient = conv.shape().weight_elements() * kFloatBytes;
  const Bytes columns = columns_bytes(conv.shape(), output), read = columns > 0 ? columns : in;
  const bool depthwise = conv.shape().depthwise(), few = ops::by_columns(conv.shape()),
             direct = few && columns == 0;
  const auto product = [&](Bytes moved) {
    return KernelCost{.products = depthwise ? 0 : layer.forward_flops,
                      .vector = depthwise ? kLibraryDepthwise * layer.forward_flops : 0,
                      .bytes = moved};
  };
  const KernelCost windows{
      .vector = kColumnOperations * static_cast<double>(columns / compute_bytes_),
      .bytes = in + columns};
  std::vector<KernelCost> forward, backward;
  if (columns > 0) forward.push_back(windows);
  forward.push_back(product(read + weight + out));
  const bool passes = !pooled && (activated || conv.has_bias());
  if (passes && !direct) forward.push_back({.bytes = 2 * out});
  if (passes) backward.push_back({.bytes = (activated ? 3 : 1) * out});
  if (trains) {
    if (columns > 0) backward.push_back(windows);
    backward.push_back(product(read + out + gradient));
    backward.push_back({});  // clears the gradient, or adds parts of it
  }
  // Images of so few channels are data, which need no gradient.
  if (!few) backward.push_back(product(out + weight + in));
  add(std::move(layer), std::move(forward), std::move(backward));
  // A direct convolution adds up parts of its weight's gradient.
  const Bytes parts =
      direct && trains
          ? gradient * kernels::direct_partials(output.samples, static_cast<int>(output.height),
                                                static_cast<int>(output.width))
          : 0;
  // A ReLU's gradient is made beside the output's.
  hold(out + columns, (activated ? out : 0) + out + (few ? columns + parts : in));
  return output;
}

ImageShape ImageCosts::norm(const BatchNorm& norm, const ImageShape& input, bool residual) {
  const Bytes in = bytes(input);
  // Behind a residual, ReLU's gradient follows from the output.
  const int output_read = residual && norm.activation() == ops::ImageActivation::relu ? 1 : 0,
            added = residual ? 1 : 0;
  std::vector<KernelCost> forward, backward;
  if (!norm.fixed()) {
    forward = {{.bytes = in}, {}};
    backward = {{.bytes = (2 + output_read) * in}, {}};
  }
  forward.push_back({.bytes = (2 + added) * in});
  // The pass of the sums leaves the residual's gradient to the other one.
  const bool early = output_read > 0 && !norm.fixed();
  if (early) backward.front().bytes += in;
  backward.push_back({.bytes = (early ? 3 : 3 + output_read + added) * in});
  add(norm.cost(input, compute_bytes_), std::move(forward), std::move(backward));
  norm.add_exchanges(cost_.exchanges);
  hold(in, (residual ? 3 : 2) * in);
  return input;
}

ImageShape ImageCosts::norm_beside(const BatchNorm& norm, const ImageShape& input) {
  const Bytes in = bytes(input);
  std::vector<KernelCost> forward, backward;
  if (!norm.fixed()) {
    forward = {{.bytes = in}, {}};
    backward = {{.bytes = 2 * in}, {}};
  }
  backward.push_back({.bytes = 3 * in});
  add(norm.cost(input, compute_bytes_), std::move(forward), std::move(backward));
  norm.add_exchanges(cost_.exchanges);
  hold(0, 4 * in);
  return input;
}

ImageShape ImageCosts::depthwise_norm(const BatchNorm* before, const Conv& conv,
                                      const BatchNorm& after, const ImageShape& input,
                                      bool excited) {
  const ImageShape output = conv.output(input);
  const Bytes in = bytes(input), out = bytes(output),
              weight = conv.shape().weight_elements() * compute_bytes_;
  if (before != nullptr) {
    // Sums; backward, those come out of the convolution's gradient.
    add(before->cost(input, compute_bytes_), {{.bytes = in}, {}}, {{}, {.bytes = 3 * in}});
    before->add_exchanges(cost_.exchanges);
  }
  // The convolution normalises what it reads and makes the sums of the norm behind it; its backward
  // forms that norm's gradient, too.
  const DepthwiseFlops flops = depthwise_flops(conv.shape(), input, output, compute_bytes_);
  add(conv.cost(input), {{}, {.vector = flops.forward, .bytes = in + out + weight}},
      {{.vector = flops.backward, .bytes = 2 * in + 2 * out + weight}, {}});
  const KernelCost sums{
      .vector = excited ? kNormGradientOperations * static_cast<double>(output.elements()) : 0,
      .bytes = (excited ? 3 : 2) * out};
  add(after.cost(output, compute_bytes_), {{}, {.bytes = 2 * out}}, {sums, {}});
  after.add_exchanges(cost_.exchanges);
  hold(out, in + out);
  return output;
}

ImageShape ImageCosts::max_pool(const std::string& name, const ops::PoolShape& shape,
                                const ImageShape& input, bool activated) {
  const ImageShape output = {input.samples, shape.output_side(input.height),
                             shape.output_side(input.width), input.channels};
  const Bytes in = bytes(input), out = bytes(output), places = output.elements();
  const std::int64_t windows = ceil_div(shape.kernel, shape.stride);  // along a side
  add({.name = name, .saved_bytes = places + (activated ? in : 0)}, {{.bytes = in + out + places}},
      {{.vector = kPoolOperations * static_cast<double>(windows * windows * input.elements()),
        .bytes = in + out + places}});
  hold(out + (activated ? 0 : in), in + out);
  return output;
}

ImageShape ImageCosts::relu_max_pool(const std::string& name, const ops::PoolShape& shape,
                                     const ImageShape& input, const BatchNorm* norm) {
  const ImageShape output = {input.samples, shape.output_side(input.height),
                             shape.output_side(input.width), input.channels};
  const Bytes in = bytes(input), out = bytes(output), places = output.elements();
  std::vector<KernelCost> forward, backward;
  if (norm != nullptr) {
    if (!norm->fixed()) {
      forward = {{.bytes = in}, {}};
      backward = {{.bytes = in + out + places}, {}};
    }
    add(norm->cost(input, compute_bytes_), std::move(forward), std::move(backward));
    norm->add_exchanges(cost_.exchanges);
  }
  add({.name = name, .saved_bytes = places}, {{.bytes = in + out + places}},
      {{.bytes = (norm != nullptr ? 2 : 1) * in + out + places}});
  hold(out + (norm != nullptr ? 0 : in), in + out);
  return output;
}

ImageShape ImageCosts::excited_conv(const Conv& conv, const ImageShape& expanded,
                                    const ImageShape& input) {
  const ImageShape output = conv.output(input);
  LayerCost layer = conv.cost(input);
  const Flops flops = layer.forward_flops;
  const Bytes in = bytes(input), out = bytes(output),
              weight = conv.shape().weight_elements() * compute_bytes_,
              gradient = conv.shape().weight_elements() * kFloatBytes;
  // The means, then the product; depthwise_norm has the passes that scale its input, in backward
  // once more.
  std::vector<KernelCost> backward;
  if (conv.weight().trainable) backward = {{.products = flops, .bytes = in + out + gradient}, {}};
  backward.push_back({.products = flops, .bytes = out + weight + in});
  const KernelCost means{.vector = kNormOperations * static_cast<double>(input.elements()),
                         .bytes = in};
  add(std::move(layer), {means, {.products = flops, .bytes = in + weight + out}},
      std::move(backward));
  hold(in + out, bytes(expanded) + in + out);
  return output;
}

void ImageCosts::linear(const Linear& linear, std::int64_t rows, bool kept) {
  LayerCost layer = linear.cost(rows, compute_bytes_, kept);
  const Flops flops = layer.forward_flops;
  const Bytes out = rows * linear.parts().front().rows * compute_bytes_,
              moved = layer.saved_bytes + out + layer.parameters * compute_bytes_;
  put_nothing_off(layer);
  const Bytes gradient = layer.parameters * kFloatBytes;
  add(std::move(layer), {{.products = flops, .bytes = moved}},
      {{.products = flops, .bytes = moved}, {.products = flops, .bytes = moved + gradient}});
}

void ImageCosts::layer_norm(const LayerNorm& norm, std::int64_t rows, bool kept) {
  const Bytes in = rows * norm.width() * compute_bytes_;
  add(norm.cost(rows, kept ? 0 : in), {{.bytes = 2 * in}}, {{.bytes = 3 * in}});
}

void ImageCosts::activation(const Linear& linear, std::int64_t rows) {
  const LinearPart& part = linear.parts().front();
  add({.name = part.name + ".activation", .saved_bytes = rows * part.rows * compute_bytes_});
}

void ImageCosts::average_pool(const std::string& name, const ImageShape& input) {
  add({.name = name}, {{.bytes = bytes(input)}}, {{.bytes = bytes(input)}});
}

void ImageCosts::scaled_mlp(const Mlp& mlp, const Parameter& scale, const ImageShape& image) {
  const std::int64_t rows = image.samples * image.height * image.width;
  const Bytes in = bytes(image);
  for (LayerCost& layer : mlp.layers(rows, compute_bytes_)) {
    put_nothing_off(layer);
    const Bytes moved =
        2 * (layer.saved_bytes + layer.made_again) + layer.parameters * compute_bytes_;
    const Flops flops = layer.forward_flops;
    add(std::move(layer), {{.products = flops, .bytes = moved}},
        {{.products = 2 * flops, .bytes = 2 * moved, .launches = 2}});
  }
  LayerCost scaled{.name = scale.parts.front().name, .saved_bytes = scale.trainable ? in : 0};
  count(scale, scaled);
  add(std::move(scaled), {{.bytes = 3 * in}}, {{.bytes = 4 * in}});
  // The gradient of the input by the residual, beside the MLP's, or the products for the scale's
  // gradient.
  const Workspace inside = mlp.workspace(rows, compute_bytes_);
  const Bytes products = image.elements() * kFloatBytes;
  hold(inside.forward + in, in + std::max(inside.backward + in, 2 * products));
}

BlockCost ImageCosts::finish(const ImageShape& output) {
  return finish(std::vector<BoundaryTensor>{{output.sizes(), compute_bytes_}});
}

BlockCost ImageCosts::finish(std::vector<BoundaryTensor> boundary) {
  cost_.take(std::exchange(layers_, {}));
  cost_.boundary = std::move(boundary);
  cost_.forward_workspace += held_;
  cost_.backward_workspace += input_ + held_;
  return std::move(cost_);
}

}  // namespace dstrain
