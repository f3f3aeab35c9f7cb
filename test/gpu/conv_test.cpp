#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "engine/kernels/batch_norm/kernels.h"
#include "engine/kernels/conv/columns_kernel.h"
#include "engine/kernels/conv/kernels.h"
#include "engine/kernels/conv/relu_kernel.h"
#include "engine/kernels/ops.h"
#include "engine/kernels/pool/kernels.h"
#include "test/gpu/places.h"
#include "test/kernels/reference/reference.h"
#include "test/kernels/tensors.h"

/// Kernels of convolutional networks against their references.
namespace dstrain {
namespace {

using namespace test;
using kernels::Activation;

TEST_CASE("GPU: batch norm equals its reference", "[gpu][kernels][conv]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const ImageSize s = GENERATE(ImageSize{1, 6, 8}, ImageSize{2, 9, 10}, ImageSize{5, 49, 24},
                               ImageSize{3, 196, 144}, ImageSize{2, 3136, 16},
                               ImageSize{4, 16, 1280}, ImageSize{2, 25, 3}, ImageSize{7, 196, 264});
  const auto activation = GENERATE(Activation::none, Activation::relu, Activation::relu6,
                                   Activation::silu, Activation::hardswish);
  const bool all = GENERATE(false, true);
  CAPTURE(c10::toString(type), s.samples, s.pixels, s.channels, static_cast<int>(activation), all);
  const bool by_output = activation == Activation::relu;  // after a residual
  compare_places(type, s.samples * s.pixels, [&](const Place& place) -> Tensors {
    test::Random random(1);
    const std::vector<std::int64_t> sizes{s.samples, s.pixels, s.channels};
    const at::Tensor x = place.put(random({s.samples, s.pixels, s.channels}, type)),
                     residual = place.put(random({s.samples, s.pixels, s.channels}, type)),
                     grad_y = place.put(random({s.samples, s.pixels, s.channels}, type)),
                     weight = place.put(random({s.channels}, type)),
                     bias = place.put(random({s.channels}, type)),
                     centre = place.channels(s.channels);
    const at::Tensor valid = valid_number(place, s.samples, all);
    const kernels::DType dtype = ops::kernel_dtype(x);
    const std::int64_t rows = kernels::batch_norm_partials(s.samples, s.pixels, s.channels);
    const at::Tensor partial = place.fill({rows, 2, s.channels}, at::kFloat);
    place.run(kernels::cuda::batch_norm_sums, kernels::reference::batch_norm_sums,
              {.x = in(x),
               .centre = fp32(centre),
               .centre_pixel = s.pixels / 2,
               .valid = valid_of(valid),
               .partial = fp32(partial),
               .samples = s.samples,
               .pixels = s.pixels,
               .channels = s.channels,
               .dtype = dtype});
    const at::Tensor mean = place.channels(s.channels), rstd = place.channels(s.channels),
                     count = place.channels(1), scale = place.channels(s.channels),
                     shift = place.channels(s.channels), mean_sum = place.channels(s.channels),
                     variance_sum = place.channels(s.channels);
    place.run(kernels::cuda::batch_norm_finish, kernels::reference::batch_norm_finish,
              {.partial = fp32(partial),
               .shared = nullptr,
               .centre = fp32(centre),
               .weight = in(weight),
               .bias = in(bias),
               .valid = valid_of(valid),
               .mean = fp32(mean),
               .rstd = fp32(rstd),
               .count = fp32(count),
               .scale = fp32(scale),
               .shift = fp32(shift),
               .mean_sum = fp32(mean_sum),
               .variance_sum = fp32(variance_sum),
               .partials = rows,
               .samples = s.samples,
               .pixels = s.pixels,
               .channels = s.channels,
               .eps = 1e-2f,
               .dtype = dtype});
    const at::Tensor scale_again = place.channels(s.channels),
                     shift_again = place.channels(s.channels);
    place.run(kernels::cuda::batch_norm_fold, kernels::reference::batch_norm_fold,
              {.mean = fp32(mean),
               .rstd = fp32(rstd),
               .weight = in(weight),
               .bias = in(bias),
               .scale = fp32(scale_again),
               .shift = fp32(shift_again),
               .channels = s.channels,
               .dtype = dtype});
    REQUIRE(scale.equal(scale_again));
    REQUIRE(shift.equal(shift_again));
    const at::Tensor y = place.fill(sizes, type);
    place.run(kernels::cuda::batch_norm_apply, kernels::reference::batch_norm_apply,
              {.x = in(x),
               .scale = fp32(scale),
               .shift = fp32(shift),
               .residual = by_output ? in(residual) : nullptr,
               .gate = nullptr,
               .y = out(y),
               .samples = s.samples,
               .pixels = s.pixels,
               .channels = s.channels,
               .activation = activation,
               .dtype = dtype,
               .residual_scale = by_output && !all ? fp32(scale_again) : nullptr,
               .residual_shift = by_output && !all ? fp32(shift_again) : nullptr});
    const at::Tensor back = place.fill({rows, 2, s.channels}, at::kFloat);
    const at::Tensor early = place.fill(sizes, type);  // the residual's gradient
    place.run(kernels::cuda::batch_norm_backward_sums, kernels::reference::batch_norm_backward_sums,
              {.x = in(x),
               .y = by_output ? in(y) : nullptr,
               .grad_y = in(grad_y),
               .mean = fp32(mean),
               .scale = fp32(scale),
               .shift = fp32(shift),
               .valid = valid_of(valid),
               .partial = fp32(back),
               .samples = s.samples,
               .pixels = s.pixels,
               .channels = s.channels,
               .activation = activation,
               .dtype = dtype,
               .grad_residual = by_output ? out(early) : nullptr});
    const at::Tensor sums = place.fill({2, s.channels}, at::kFloat);
    place.run(kernels::cuda::batch_norm_add_sums, kernels::reference::batch_norm_add_sums,
              {.partial = fp32(back),
               .rstd = fp32(rstd),
               .sums = fp32(sums),
               .partials = rows,
               .channels = s.channels});
    const at::Tensor slope = place.channels(s.channels), offset = place.channels(s.channels),
                     grad_weight = place.put(at::zeros({s.channels})),
                     grad_bias = place.put(at::zeros({s.channels}));
    place.run(kernels::cuda::batch_norm_backward_finish,
              kernels::reference::batch_norm_backward_finish,
              {.partial = fp32(back),
               .all_sums = s.channels % 16 == 0 ? fp32(sums) : nullptr,
               .rstd = fp32(rstd),
               .scale = fp32(scale),
               .count = fp32(count),
               .slope = fp32(slope),
               .offset = fp32(offset),
               .grad_weight = fp32(grad_weight),
               .grad_bias = fp32(grad_bias),
               .partials = rows,
               .channels = s.channels});
    const at::Tensor grad_x = place.fill(sizes, type), grad_residual = place.fill(sizes, type);
    place.run(kernels::cuda::batch_norm_backward_apply,
              kernels::reference::batch_norm_backward_apply,
              {.x = in(x),
               .y = by_output ? in(y) : nullptr,
               .grad_y = in(grad_y),
               .mean = fp32(mean),
               .scale = fp32(scale),
               .shift = fp32(shift),
               .slope = fp32(slope),
               .offset = fp32(offset),
               .valid = valid_of(valid),
               .grad_x = out(grad_x),
               .grad_residual = by_output ? out(grad_residual) : nullptr,
               .samples = s.samples,
               .pixels = s.pixels,
               .channels = s.channels,
               .activation = activation,
               .dtype = dtype});
    Tensors results{mean,         rstd, count, scale,       shift,     mean_sum,
                    variance_sum, y,    sums,  grad_weight, grad_bias, grad_x};
    if (by_output) {
      REQUIRE(early.equal(grad_residual));
      results.push_back(grad_residual);
    }
    return results;
  });
}

/// Mean and 1 / std of channels by the kernels, of images of this rank alone and shared with
/// another rank that has the same images.
Tensors gpu_moments(const at::Tensor& x) {
  const std::int64_t samples = x.size(0), pixels = x.size(1), channels = x.size(2),
                     rows = kernels::batch_norm_partials(samples, pixels, channels);
  const Place place{at::kCUDA};
  const at::Tensor centre = place.channels(channels), origin = place.put(at::zeros({channels})),
                   partial = place.fill({rows, 2, channels}, at::kFloat),
                   shared = place.fill({2 * channels + 1}, at::kDouble),
                   weight = place.put(at::ones({channels})), unused = place.channels(channels);
  kernels::cuda::batch_norm_sums({.x = in(x),
                                  .centre = fp32(centre),
                                  .centre_pixel = pixels / 2,
                                  .valid = nullptr,
                                  .partial = fp32(partial),
                                  .samples = samples,
                                  .pixels = pixels,
                                  .channels = channels,
                                  .dtype = kernels::DType::f32},
                                 ops::current_stream());
  kernels::cuda::batch_norm_move_sums({.partial = fp32(partial),
                                       .centre = fp32(centre),
                                       .origin = fp32(origin),
                                       .valid = nullptr,
                                       .sums = shared.mutable_data_ptr<double>(),
                                       .partials = rows,
                                       .samples = samples,
                                       .pixels = pixels,
                                       .channels = channels},
                                      ops::current_stream());
  shared.mul_(2);
  Tensors moments;
  for (const bool alone : {true, false}) {
    const at::Tensor mean = place.channels(channels), rstd = place.channels(channels),
                     count = place.channels(1);
    kernels::cuda::batch_norm_finish({.partial = fp32(partial),
                                      .shared = alone ? nullptr : shared.const_data_ptr<double>(),
                                      .centre = fp32(alone ? centre : origin),
                                      .weight = in(weight),
                                      .bias = in(weight),
                                      .valid = nullptr,
                                      .mean = fp32(mean),
                                      .rstd = fp32(rstd),
                                      .count = fp32(count),
                                      .scale = fp32(unused),
                                      .shift = fp32(unused),
                                      .mean_sum = nullptr,
                                      .variance_sum = nullptr,
                                      .partials = rows,
                                      .samples = samples,
                                      .pixels = pixels,
                                      .channels = channels,
                                      .eps = 1e-5f,
                                      .dtype = kernels::DType::f32},
                                     ops::current_stream());
    REQUIRE(count.item<float>() == static_cast<float>(samples * pixels * (alone ? 1 : 2)));
    moments.insert(moments.end(), {mean, rstd});
  }
  return moments;
}

TEST_CASE("GPU: the variance of channels that are far from zero is exact", "[gpu][kernels][conv]") {
  test::Random random(5);
  const at::Tensor x = random({4, 196, 24}) + 1000.0, wide = x.to(at::kDouble).view({-1, 24});
  const at::Tensor mean = wide.mean(0), centred = wide - mean,
                   rstd = (centred.square().mean(0) + 1e-5).rsqrt();
  const Tensors moments = gpu_moments(x.to(at::kCUDA));
  for (std::size_t i = 0; i < moments.size(); ++i) {
    CAPTURE(i);
    const at::Tensor& exact = i % 2 == 0 ? mean : rstd;
    // Sums about a number that is some deviations off; one about 0 would be wrong by 1 in 20.
    REQUIRE((moments[i].cpu().to(at::kDouble) / exact - 1).abs().max().item<double>() < 1e-5);
  }
}

struct ConvCase {
  std::int64_t samples, height, width, channels;
  int kernel, stride, before, after;
};
const ConvCase kConvCases[] = {
    {2, 14, 14, 8, 3, 1, 1, 1},    {3, 7, 7, 960, 3, 1, 1, 1},   {2, 15, 13, 10, 3, 1, 1, 1},
    {1, 45, 9, 4, 3, 1, 1, 1},     {2, 28, 28, 144, 3, 2, 1, 1}, {1, 15, 13, 66, 3, 2, 1, 1},
    {2, 16, 14, 1280, 3, 2, 0, 1}, {1, 1, 1, 8, 3, 1, 1, 1},     {3, 2, 3, 8, 3, 2, 1, 1},
    {2, 14, 14, 672, 5, 1, 2, 2},  {1, 7, 9, 70, 5, 1, 2, 2},    {1, 14, 15, 240, 5, 2, 2, 2},
    {2, 16, 14, 12, 5, 2, 1, 2},   {1, 2, 2, 2, 5, 2, 2, 2},     {1, 40, 5, 8, 5, 2, 1, 2},
    {1, 112, 60, 32, 3, 1, 1, 1},  {40, 20, 20, 24, 3, 1, 1, 1},
};

TEST_CASE("GPU: depthwise convolutions equal their references", "[gpu][kernels][conv]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const ConvCase c = GENERATE(from_range(std::begin(kConvCases), std::end(kConvCases)));
  const bool normed = GENERATE(false, true), follows = GENERATE(false, true);
  CAPTURE(c10::toString(type), c.samples, c.height, c.width, c.channels, c.kernel, c.stride,
          c.before, normed, follows);
  const auto out_side = [&](std::int64_t side) {
    return (side + c.before + c.after - c.kernel) / c.stride + 1;
  };
  const kernels::DepthwiseShape shape{.samples = c.samples,
                                      .height = c.height,
                                      .width = c.width,
                                      .out_height = out_side(c.height),
                                      .out_width = out_side(c.width),
                                      .channels = c.channels,
                                      .kernel = c.kernel,
                                      .stride = c.stride,
                                      .before = c.before};
  const auto before = static_cast<Activation>(c.height % 5),
             after = static_cast<Activation>((c.width + 2) % 5);
  compare_places(
      type, c.samples * shape.out_height * shape.out_width, [&](const Place& place) -> Tensors {
        test::Random random(3);
        const std::vector<std::int64_t> sizes{c.samples, c.height, c.width, c.channels},
            out_sizes{c.samples, shape.out_height, shape.out_width, c.channels};
        const auto vector = [&](double factor) { return place.put(random({c.channels}) * factor); };
        const at::Tensor x = place.put(random(sizes, type)),
                         weight = place.put(random({c.channels, c.kernel * c.kernel}, type)),
                         grad = place.put(random(out_sizes, type)), mean = vector(1),
                         scale = vector(2), shift = vector(1), centre = place.channels(c.channels),
                         next_mean = vector(1), next_scale = vector(2), next_shift = vector(1),
                         slope = vector(0.1), offset = vector(0.1),
                         gate = place.put(random({c.samples, c.channels})),
                         grad_mean = place.put(random({c.samples, c.channels})),
                         given = place.put(random(out_sizes, type));
        const at::Tensor valid = valid_number(place, c.samples, c.samples == 1);
        const kernels::DType dtype = ops::kernel_dtype(x);
        const at::Tensor y = place.fill(out_sizes, type),
                         partial =
                             place.fill({kernels::depthwise_partials(shape, dtype), 2, c.channels},
                                        at::kFloat);
        place.run(kernels::cuda::depthwise, kernels::reference::depthwise,
                  {.x = in(x),
                   .scale = normed ? fp32(scale) : nullptr,
                   .shift = normed ? fp32(shift) : nullptr,
                   .weight = in(weight),
                   .y = out(y),
                   .centre = fp32(centre),
                   .valid = valid_of(valid),
                   .partial = fp32(partial),
                   .shape = shape,
                   .activation = before,
                   .dtype = dtype});
        const std::int64_t rows = kernels::depthwise_backward_partials(shape, dtype);
        const at::Tensor grad_x = place.fill(sizes, type),
                         back = place.fill({rows, 2, c.channels}, at::kFloat),
                         grad_weight = place.put(random({c.channels, c.kernel * c.kernel})),
                         weight_partial =
                             place.fill({rows, c.kernel * c.kernel, c.channels}, at::kFloat);
        place.run(kernels::cuda::depthwise_backward, kernels::reference::depthwise_backward,
                  {.x = in(x),
                   .mean = normed ? fp32(mean) : nullptr,
                   .scale = normed ? fp32(scale) : nullptr,
                   .shift = normed ? fp32(shift) : nullptr,
                   .weight = in(weight),
                   .grad = in(grad),
                   .following = {.y = follows ? in(given) : nullptr,
                                 .mean = fp32(next_mean),
                                 .scale = fp32(next_scale),
                                 .shift = fp32(next_shift),
                                 .slope = fp32(slope),
                                 .offset = fp32(offset),
                                 .gate = c.kernel == 5 ? fp32(gate) : nullptr,
                                 .grad_mean = c.kernel == 5 ? fp32(grad_mean) : nullptr,
                                 .activation = after},
                   .valid = valid_of(valid),
                   .grad_x = out(grad_x),
                   .partial = fp32(back),
                   .grad_weight = fp32(grad_weight),
                   .weight_partial = fp32(weight_partial),
                   .shape = shape,
                   .activation = before,
                   .dtype = dtype,
                   .write_weight = c.samples == 2});
        // The centre is no part of the result.
        const double count = static_cast<double>(shape.out_height * shape.out_width) *
                             static_cast<double>(valid.defined() ? valid.item<int>() : c.samples);
        const at::Tensor means = partial.sum(0) / std::max(1.0, count);
        return {y,      means[0] + centre, means[1] - means[0].square(),
                grad_x, back.sum(0),       grad_weight};
      });
}

TEST_CASE("GPU: backward of a ReLU with the gradient of its bias equals its reference",
          "[gpu][kernels][conv]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const std::int64_t rows = GENERATE(1, 77, 5000), channels = GENERATE(5, 8, 64, 520);
  const bool bias = GENERATE(false, true);
  CAPTURE(c10::toString(type), rows, channels, bias);
  compare_places(type, rows, [&](const Place& place) -> Tensors {
    test::Random random(8);
    const at::Tensor y = place.put(random({rows, channels}, type).relu_()),
                     grad_y = place.put(random({rows, channels}, type)),
                     grad_z = place.fill({rows, channels}, type),
                     grad_bias = place.put(random({channels})),
                     partial = place.fill({kernels::bias_relu_partials(rows, channels), channels},
                                          at::kFloat);
    place.run(kernels::cuda::bias_relu_backward, kernels::reference::bias_relu_backward,
              {.y = in(y),
               .grad_y = in(grad_y),
               .grad_z = out(grad_z),
               .grad_bias = bias ? fp32(grad_bias) : nullptr,
               .partial = bias ? fp32(partial) : nullptr,
               .rows = rows,
               .channels = channels,
               .dtype = ops::kernel_dtype(y)});
    return {grad_z, grad_bias};
  });
}

TEST_CASE("GPU: the windows of a convolution as rows equal their reference",
          "[gpu][kernels][conv]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const int channels = GENERATE(1, 3), kernel = GENERATE(3, 5, 7), stride = GENERATE(1, 2);
  const bool channels_last = GENERATE(false, true);
  CAPTURE(c10::toString(type), channels, kernel, stride, channels_last);
  const int height = 33, width = 30, before = kernel / 2;
  const int out_height = (height + 2 * before - kernel) / stride + 1,
            out_width = (width + 2 * before - kernel) / stride + 1;
  const int columns_width = (channels * kernel * kernel + 7) / 8 * 8;
  compare_places(type, 1, [&](const Place& place) -> Tensors {
    test::Random random(6);
    const at::Tensor stored = place.put(channels_last ? random({3, height, width, channels}, type)
                                                      : random({3, channels, height, width}, type));
    const at::Tensor x = channels_last ? stored : stored.permute({0, 2, 3, 1});
    const at::Tensor columns = place.fill({3 * out_height * out_width, columns_width}, type);
    place.run(kernels::cuda::image_columns, kernels::reference::image_columns,
              {.x = in(x),
               .sample_stride = x.stride(0),
               .row_stride = x.stride(1),
               .column_stride = x.stride(2),
               .channel_stride = x.stride(3),
               .columns = out(columns),
               .samples = 3,
               .height = height,
               .width = width,
               .out_height = out_height,
               .out_width = out_width,
               .channels = channels,
               .kernel = kernel,
               .stride = stride,
               .before = before,
               .columns_width = columns_width,
               .dtype = ops::kernel_dtype(x)});
    return {columns};
  });
}

TEST_CASE("GPU: max pooling equals its reference, nan and equal elements included",
          "[gpu][kernels][conv]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const auto [kernel, stride, before] =
      GENERATE(std::array{2, 2, 0}, std::array{3, 2, 1}, std::array{3, 1, 1}, std::array{2, 3, 0});
  const std::int64_t side = GENERATE(3, 8, 15), channels = GENERATE(3, 8, 72);
  CAPTURE(c10::toString(type), kernel, stride, before, side, channels);
  const std::int64_t out_side = (side + 2 * before - kernel) / stride + 1;
  const kernels::PoolShape shape{.samples = 3,
                                 .height = side,
                                 .width = side + 2,
                                 .out_height = out_side,
                                 .out_width = (side + 2 + 2 * before - kernel) / stride + 1,
                                 .channels = channels,
                                 .kernel = kernel,
                                 .stride = stride,
                                 .before = before};
  compare_places(type, 9, [&](const Place& place) -> Tensors {
    test::Random random(4);
    at::Tensor images = random({3, side, side + 2, channels}).mul_(2).round_().to(type);
    const at::Tensor x = place.put(images),
                     grad_y = place.put(random({3, out_side, shape.out_width, channels}, type));
    const at::Tensor y = place.fill(grad_y.sizes(), type),
                     where = place.fill(grad_y.sizes(), at::kByte),
                     grad_x = place.fill(x.sizes(), type);
    place.run(kernels::cuda::max_pool, kernels::reference::max_pool,
              {.x = in(x),
               .y = out(y),
               .place = where.mutable_data_ptr<std::uint8_t>(),
               .shape = shape,
               .dtype = ops::kernel_dtype(x)});
    place.run(kernels::cuda::max_pool_backward, kernels::reference::max_pool_backward,
              {.grad_y = in(grad_y),
               .place = where.const_data_ptr<std::uint8_t>(),
               .grad_x = out(grad_x),
               .shape = shape,
               .dtype = ops::kernel_dtype(x)});
    images = images.clone();
    images.view(-1)[images.numel() / 2] = std::numeric_limits<double>::quiet_NaN();
    const at::Tensor with_nan = place.put(images), nan_y = place.fill(y.sizes(), type);
    place.run(kernels::cuda::max_pool, kernels::reference::max_pool,
              {.x = in(with_nan),
               .y = out(nan_y),
               .place = nullptr,
               .shape = shape,
               .dtype = ops::kernel_dtype(x)});
    return {y, where.to(at::kInt).to(at::kFloat), grad_x, nan_y.isnan().to(at::kFloat)};
  });
}

}  // namespace
}  // namespace dstrain
