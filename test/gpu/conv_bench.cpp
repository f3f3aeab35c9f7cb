#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/max_pool2d_with_indices_backward.h>

#include "engine/kernels/batch_norm/kernels.h"
#include "engine/kernels/conv/columns_kernel.h"
#include "engine/kernels/conv/direct_kernel.h"
#include "engine/kernels/conv/kernels.h"
#include "engine/kernels/conv/relu_kernel.h"
#include "engine/kernels/pool/kernels.h"
#include "engine/kernels/pool/norm_pool_kernel.h"
#include "test/gpu/bench.h"

/// Kernels of convolutional networks at the shapes of MobileNetV2 and EfficientNet-B0, 256 images
/// of 224 pixels; hidden, run with `test_gpu "[.bench]"`.
namespace dstrain {
namespace {

using namespace test;
using kernels::Activation;

constexpr std::int64_t kBatch = 256;

std::string image_text(std::int64_t side, std::int64_t channels) {
  return std::to_string(side) + " px, " + std::to_string(channels);
}

struct Layer {
  std::int64_t side, channels;
  int kernel, stride;
};
constexpr Layer kMobileNet[] = {{112, 32, 3, 1}, {112, 96, 3, 2}, {56, 144, 3, 1}, {56, 144, 3, 2},
                                {28, 192, 3, 1}, {28, 192, 3, 2}, {14, 384, 3, 1}, {14, 576, 3, 1},
                                {14, 576, 3, 2}, {7, 960, 3, 1}};
constexpr Layer kEfficientNet[] = {
    {112, 96, 3, 2}, {56, 144, 3, 1}, {56, 144, 5, 2}, {28, 240, 5, 1}, {28, 240, 3, 2},
    {14, 480, 5, 1}, {14, 672, 5, 1}, {14, 672, 5, 2}, {7, 1152, 5, 1}, {7, 1152, 3, 1}};

std::vector<Case> depthwise_cases(const Layer& layer, Activation activation) {
  const std::int64_t out = (layer.side - 1) / layer.stride + 1, channels = layer.channels;
  const kernels::DepthwiseShape shape{.samples = kBatch,
                                      .height = layer.side,
                                      .width = layer.side,
                                      .out_height = out,
                                      .out_width = out,
                                      .channels = channels,
                                      .kernel = layer.kernel,
                                      .stride = layer.stride,
                                      .before = layer.kernel / 2};
  const double read = 2.0 * static_cast<double>(kBatch * layer.side * layer.side * channels),
               written = 2.0 * static_cast<double>(kBatch * out * out * channels);
  const std::int64_t taps = layer.kernel * layer.kernel;
  const std::string where = image_text(layer.side, channels) + ", " + std::to_string(layer.kernel) +
                            "x" + std::to_string(layer.kernel) + ", stride " +
                            std::to_string(layer.stride);
  return {
      {"depthwise", where, read + written,
       [=] {
         const auto x = random({kBatch, layer.side, layer.side, channels}),
                    weight = random({channels, taps}), y = random({kBatch, out, out, channels}),
                    scale = random32({channels}), shift = random32({channels}),
                    centre = random32({channels}),
                    partial = random32({kernels::depthwise_partials(shape, kDType), 2, channels});
         return launch<kernels::Depthwise>(
             kernels::cuda::depthwise,
             {data(x), fp32(scale), fp32(shift), data(weight), data(y), fp32(centre), nullptr,
              fp32(partial), shape, activation, kDType},
             {x, weight, y, scale, shift, centre, partial});
       }},
      {"depthwise_backward", where, 2 * (read + written), [=] {
         const std::int64_t rows = kernels::depthwise_backward_partials(shape, kDType);
         const auto x = random({kBatch, layer.side, layer.side, channels}),
                    weight = random({channels, taps}), grad = random({kBatch, out, out, channels}),
                    y = random({kBatch, out, out, channels}),
                    grad_x = random({kBatch, layer.side, layer.side, channels}),
                    vectors = random32({8, channels}), grad_weight = random32({channels, taps}),
                    partial = random32({rows, 2, channels}),
                    weight_partial = random32({rows, taps, channels});
         const auto vector = [&](int i) { return fp32(vectors) + i * channels; };
         return launch<kernels::DepthwiseBackward>(
             kernels::cuda::depthwise_backward,
             {data(x), vector(0), vector(1), vector(2), data(weight), data(grad),
              kernels::FollowingNorm{data(y), vector(3), vector(4), vector(5), vector(6), vector(7),
                                     nullptr, nullptr, activation},
              nullptr, data(grad_x), fp32(partial), fp32(grad_weight), fp32(weight_partial), shape,
              activation, kDType},
             {x, weight, grad, y, grad_x, vectors, grad_weight, partial, weight_partial});
       }}};
}

std::vector<Case> norm_cases(std::int64_t side, std::int64_t channels, Activation activation) {
  const std::int64_t pixels = side * side,
                     rows = kernels::batch_norm_partials(kBatch, pixels, channels);
  const double image = 2.0 * static_cast<double>(kBatch * pixels * channels);
  const auto images = [=] { return random({kBatch, pixels, channels}); };
  const std::string where = image_text(side, channels);
  return {
      {"batch_norm_sums", where, image,
       [=] {
         const auto x = images(), centre = random32({channels}),
                    partial = random32({rows, 2, channels});
         return launch<kernels::BatchNormSums>(kernels::cuda::batch_norm_sums,
                                               {data(x), fp32(centre), pixels / 2, nullptr,
                                                fp32(partial), kBatch, pixels, channels, kDType},
                                               {x, centre, partial});
       }},
      {"batch_norm_apply", where, 2 * image,
       [=] {
         const auto x = images(), y = images(), vectors = random32({2, channels});
         return launch<kernels::BatchNormApply>(
             kernels::cuda::batch_norm_apply,
             {data(x), fp32(vectors), fp32(vectors) + channels, nullptr, nullptr, data(y), kBatch,
              pixels, channels, activation, kDType},
             {x, y, vectors});
       }},
      {"batch_norm_backward_sums", where, 2 * image,
       [=] {
         const auto x = images(), grad_y = images(), vectors = random32({3, channels}),
                    partial = random32({rows, 2, channels});
         return launch<kernels::BatchNormBackwardSums>(
             kernels::cuda::batch_norm_backward_sums,
             {data(x), nullptr, data(grad_y), fp32(vectors), fp32(vectors) + channels,
              fp32(vectors) + 2 * channels, nullptr, fp32(partial), kBatch, pixels, channels,
              activation, kDType},
             {x, grad_y, vectors, partial});
       }},
      {"batch_norm_backward_apply", where, 3 * image, [=] {
         const auto x = images(), grad_y = images(), grad_x = images(),
                    vectors = random32({5, channels});
         const auto vector = [&](int i) { return fp32(vectors) + i * channels; };
         return launch<kernels::BatchNormBackwardApply>(
             kernels::cuda::batch_norm_backward_apply,
             {data(x), nullptr, data(grad_y), vector(0), vector(1), vector(2), vector(3), vector(4),
              nullptr, data(grad_x), nullptr, kBatch, pixels, channels, activation, kDType},
             {x, grad_y, grad_x, vectors});
       }}};
}

std::vector<Case> finish_cases(std::int64_t side, std::int64_t channels) {
  const std::int64_t pixels = side * side,
                     rows = kernels::batch_norm_partials(kBatch, pixels, channels);
  return {{"batch_norm_finish", image_text(side, channels) + ", " + std::to_string(rows) + " rows",
           8.0 * static_cast<double>(rows * channels), [=] {
             const auto partial = random32({rows, 2, channels}), vectors = random32({8, channels}),
                        weight = random({2, channels});
             const auto vector = [&](int i) { return fp32(vectors) + i * channels; };
             return launch<kernels::BatchNormFinish>(
                 kernels::cuda::batch_norm_finish,
                 {fp32(partial), nullptr, vector(0), data(weight), data(weight[1]), nullptr,
                  vector(1), vector(2), vector(7), vector(3), vector(4), vector(5), vector(6), rows,
                  kBatch, pixels, channels, 1e-5f, kDType},
                 {partial, vectors, weight});
           }}};
}

std::vector<Case> squeeze_cases(std::int64_t side, std::int64_t channels) {
  const std::int64_t pixels = side * side;
  const double image = 2.0 * static_cast<double>(kBatch * pixels * channels);
  const std::string where = image_text(side, channels);
  const auto gate_sums = [=](bool writes) {
    const auto x = random({kBatch, pixels, channels}), grad = random({kBatch, pixels, channels}),
               y = random({writes ? kBatch : 1, pixels, channels}),
               gate = random32({kBatch, channels}), grad_gate = random32({kBatch, channels}),
               vectors = random32({3, channels}), sums = random32({kBatch, 4, channels});
    return launch<kernels::GateBackwardSums>(
        kernels::cuda::gate_backward_sums,
        {data(x), data(grad), fp32(vectors), fp32(vectors) + channels, fp32(vectors) + 2 * channels,
         fp32(grad_gate), fp32(sums), kBatch, pixels, channels, Activation::silu, kDType,
         writes ? fp32(gate) : nullptr, writes ? data(y) : nullptr},
        {x, grad, y, gate, grad_gate, vectors, sums});
  };
  return {{"squeeze", where, image,
           [=] {
             const auto x = random({kBatch, pixels, channels}), mean = random({kBatch, channels}),
                        vectors = random32({2, channels});
             return launch<kernels::Squeeze>(
                 kernels::cuda::squeeze,
                 {data(x), fp32(vectors), fp32(vectors) + channels, data(mean), kBatch, pixels,
                  channels, Activation::silu, kDType},
                 {x, mean, vectors});
           }},
          {"gate_backward_sums", where, 2 * image, [=] { return gate_sums(false); }},
          {"gate_backward_sums, y", where, 3 * image, [=] { return gate_sums(true); }}};
}

std::vector<Case> pool_cases(std::int64_t side, std::int64_t channels, int kernel,
                             std::int64_t batch) {
  const int before = kernel / 2 - (kernel == 2 ? 1 : 0);
  const std::int64_t out = (side + 2 * before - kernel) / 2 + 1;
  const kernels::PoolShape shape{.samples = batch,
                                 .height = side,
                                 .width = side,
                                 .out_height = out,
                                 .out_width = out,
                                 .channels = channels,
                                 .kernel = kernel,
                                 .stride = 2,
                                 .before = before};
  const double read = 2.0 * static_cast<double>(batch * side * side * channels),
               written = 2.0 * static_cast<double>(batch * out * out * channels);
  const std::string where =
      image_text(side, channels) + ", " + std::to_string(kernel) + "x" + std::to_string(kernel);
  const auto image = [=] { return random({batch, side, side, channels}); };
  const auto pooled = [=] { return random({batch, out, out, channels}); };
  const auto places = [=] { return at::zeros({batch, out, out, channels}, on_gpu(at::kByte)); };
  const auto as_image = [](const at::Tensor& t) { return t.permute({0, 3, 1, 2}); };
  return {{"max_pool", where, read + 1.5 * written,
           [=] {
             const auto x = image(), y = pooled(), place = places();
             return launch<kernels::MaxPool>(
                 kernels::cuda::max_pool,
                 {data(x), data(y), place.mutable_data_ptr<std::uint8_t>(), shape, kDType},
                 {x, y, place});
           }},
          {"max_pool_backward", where, read + 1.5 * written,
           [=] {
             const auto grad_x = image(), grad_y = pooled(), place = places();
             return launch<kernels::MaxPoolBackward>(
                 kernels::cuda::max_pool_backward,
                 {data(grad_y), place.const_data_ptr<std::uint8_t>(), data(grad_x), shape, kDType},
                 {grad_x, grad_y, place});
           }},
          {"ATen's max pool", where, read + 5 * written,
           [=]() -> Run {
             const auto x = as_image(image());
             return [=] {
               (void)at::max_pool2d_with_indices(x, {kernel, kernel}, {2, 2}, {before, before});
             };
           }},
          {"ATen's max pool backward", where, read + 5 * written, [=]() -> Run {
             const auto x = as_image(image()), grad = as_image(pooled());
             const auto [y, indices] =
                 at::max_pool2d_with_indices(x, {kernel, kernel}, {2, 2}, {before, before});
             return [=, places_of = indices] {
               (void)at::max_pool2d_with_indices_backward(
                   grad, x, {kernel, kernel}, {2, 2}, {before, before}, {1, 1}, false, places_of);
             };
           }}};
}

TEST_CASE("GPU: bench: depthwise convolutions", "[gpu][.bench][conv_bench]") {
  print_head();
  for (const Layer& layer : kMobileNet)
    print_rows(depthwise_cases(layer, Activation::relu6), "ReLU6,");
  for (const Layer& layer : kEfficientNet)
    print_rows(depthwise_cases(layer, Activation::silu), "SiLU,");
}

std::vector<Case> relu_cases(std::int64_t side, std::int64_t channels, std::int64_t batch) {
  const std::int64_t rows = batch * side * side;
  return {{"bias_relu_backward", image_text(side, channels),
           6.0 * static_cast<double>(rows * channels), [=] {
             const auto y = random({rows, channels}), grad_y = random({rows, channels}),
                        grad_z = random({rows, channels}), grad_bias = random32({channels}),
                        partial = random32({kernels::bias_relu_partials(rows, channels), channels});
             return launch<kernels::BiasReluBackward>(
                 kernels::cuda::bias_relu_backward,
                 {data(y), data(grad_y), data(grad_z), fp32(grad_bias), fp32(partial), rows,
                  channels, kDType},
                 {y, grad_y, grad_z, grad_bias, partial});
           }}};
}

std::vector<Case> column_cases(std::int64_t side, int kernel, std::int64_t batch) {
  const std::int64_t out = side / 2, width = (3 * kernel * kernel + 7) / 8 * 8;
  const double read = 6.0 * static_cast<double>(batch * side * side),
               written = 2.0 * static_cast<double>(batch * out * out * width);
  return {{"image_columns",
           image_text(side, 3) + ", " + std::to_string(kernel) + "x" + std::to_string(kernel) +
               ", stride 2",
           read + written, [=] {
             const auto x = random({batch, 3, side, side}),
                        columns = random({batch * out * out, width});
             const auto pixels = static_cast<int>(side), sides = static_cast<int>(out);
             return launch<kernels::ImageColumns>(
                 kernels::cuda::image_columns,
                 {data(x), 3 * side * side, side, 1, side * side, data(columns), batch, pixels,
                  pixels, sides, sides, 3, kernel, 2, kernel / 2, static_cast<int>(width), kDType},
                 {x, columns});
           }}};
}

std::vector<Case> direct_cases(std::int64_t side, int kernel, int stride, int channels,
                               std::int64_t batch) {
  const std::int64_t out = side / stride;
  const auto pixels = static_cast<int>(side), sides = static_cast<int>(out);
  const kernels::DirectShape shape{3 * side * side, side,       1,       side * side, batch,
                                   pixels,          pixels,     sides,   sides,       kernel,
                                   stride,          kernel / 2, channels};
  const double moved = 2.0 * static_cast<double>(batch * (3 * side * side + out * out * channels));
  const std::string where = image_text(side, channels) + ", " + std::to_string(kernel) + "x" +
                            std::to_string(kernel) + ", stride " + std::to_string(stride);
  const auto weights = [=] { return random({channels, 3, kernel, kernel}); };
  return {{"direct_conv", where, moved,
           [=] {
             const auto x = random({batch, 3, side, side}), weight = weights(),
                        y = random({batch, out, out, channels});
             return launch<kernels::DirectConv>(
                 kernels::cuda::direct_conv,
                 {data(x), data(weight), data(weight), data(y), shape, true, kDType},
                 {x, weight, y});
           }},
          {"direct_conv_backward", where, moved, [=] {
             const auto x = random({batch, 3, side, side}), y = random({batch, out, out, channels}),
                        gradient = random32({channels, 3, kernel, kernel}),
                        partial = random32(
                            {kernels::direct_partials(batch, shape.out_height, shape.out_width),
                             gradient.numel()});
             return launch<kernels::DirectConvBackward>(
                 kernels::cuda::direct_conv_backward,
                 {data(x), data(y), fp32(partial), fp32(gradient), shape, kDType},
                 {x, y, gradient, partial});
           }}};
}

std::vector<Case> norm_pool_cases(std::int64_t side, std::int64_t channels, int kernel,
                                  std::int64_t batch) {
  const std::int64_t out = side / 2;
  const kernels::PoolShape shape{.samples = batch,
                                 .height = side,
                                 .width = side,
                                 .out_height = out,
                                 .out_width = out,
                                 .channels = channels,
                                 .kernel = kernel,
                                 .stride = 2,
                                 .before = kernel - 2};
  const double image = 2.0 * static_cast<double>(batch * side * side * channels),
               result = 3.0 * static_cast<double>(batch * out * out * channels);
  const std::string where =
      image_text(side, channels) + ", " + std::to_string(kernel) + "x" + std::to_string(kernel);
  const auto images = [=] { return random({batch, side, side, channels}); };
  const auto pooled = [=] { return random({batch, out, out, channels}); };
  const auto places = [=] { return at::zeros({batch, out, out, channels}, on_gpu(at::kByte)); };
  const std::int64_t rows = kernels::norm_pool_partials(shape);
  const auto place_of = [](const at::Tensor& t) { return t.mutable_data_ptr<std::uint8_t>(); };
  return {{"norm_max_pool", where, image + result,
           [=] {
             const auto x = images(), y = pooled(), place = places(),
                        vectors = random32({2, channels});
             return launch<kernels::NormMaxPool>(kernels::cuda::norm_max_pool,
                                                 {data(x), fp32(vectors), fp32(vectors) + channels,
                                                  data(y), place_of(place), shape, kDType},
                                                 {x, y, place, vectors});
           }},
          {"norm_max_pool_sums", where, image + result,
           [=] {
             const auto x = images(), y = pooled(), place = places(), mean = random32({channels}),
                        partial = random32({rows, 2, channels});
             return launch<kernels::NormMaxPoolSums>(kernels::cuda::norm_max_pool_sums,
                                                     {data(x), place_of(place), data(y), fp32(mean),
                                                      nullptr, fp32(partial), shape, kDType},
                                                     {x, y, place, mean, partial});
           }},
          {"norm_max_pool_backward", where, 2 * image + result,
           [=] {
             const auto x = images(), y = pooled(), place = places(), dx = images(),
                        vectors = random32({4, channels});
             const auto vector = [&](int i) { return fp32(vectors) + i * channels; };
             return launch<kernels::NormMaxPoolBackward>(
                 kernels::cuda::norm_max_pool_backward,
                 {data(x), vector(0), vector(1), vector(2), vector(3), nullptr, place_of(place),
                  data(y), data(dx), nullptr, nullptr, shape, kDType},
                 {x, y, place, dx, vectors});
           }},
          {"norm_max_pool_backward, bias", where, image + result, [=] {
             const auto y = pooled(), place = places(), dx = images(), bias = random32({channels}),
                        partial = random32({rows, channels});
             return launch<kernels::NormMaxPoolBackward>(
                 kernels::cuda::norm_max_pool_backward,
                 {nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, place_of(place), data(y),
                  data(dx), fp32(bias), fp32(partial), shape, kDType},
                 {y, place, dx, bias, partial});
           }}};
}

TEST_CASE("GPU: bench: convolutions of images and pools behind norms",
          "[gpu][.bench][conv_bench][image_bench]") {
  print_head();
  print_rows(direct_cases(224, 7, 2, 64, 128), "");
  print_rows(direct_cases(224, 3, 1, 64, 64), "");
  print_rows(direct_cases(224, 3, 2, 32, 128), "");
  print_rows(norm_pool_cases(112, 64, 3, 128), "");
  print_rows(norm_pool_cases(224, 64, 2, 64), "");
  print_rows(norm_pool_cases(56, 256, 2, 64), "");
}

TEST_CASE("GPU: bench: batch norm, squeeze and pools", "[gpu][.bench][conv_bench]") {
  print_head();
  print_rows(norm_cases(112, 96, Activation::relu6), "ReLU6,");
  print_rows(norm_cases(112, 32, Activation::silu), "SiLU,");
  print_rows(norm_cases(56, 24, Activation::none), "");
  print_rows(norm_cases(56, 144, Activation::silu), "SiLU,");
  print_rows(norm_cases(28, 240, Activation::relu6), "ReLU6,");
  print_rows(norm_cases(14, 576, Activation::relu6), "ReLU6,");
  print_rows(norm_cases(7, 1152, Activation::silu), "SiLU,");
  print_rows(finish_cases(112, 32), "");
  print_rows(finish_cases(14, 576), "");
  print_rows(squeeze_cases(112, 32), "SiLU,");
  print_rows(squeeze_cases(56, 144), "SiLU,");
  print_rows(squeeze_cases(14, 672), "SiLU,");
  print_rows(pool_cases(112, 64, 3, kBatch), "");
  print_rows(pool_cases(224, 64, 2, 64), "");
  print_rows(relu_cases(224, 64, 64), "");
  print_rows(column_cases(224, 3, kBatch), "");
  print_rows(column_cases(224, 7, kBatch), "");
}

}  // namespace
}  // namespace dstrain
