#include <ATen/ops/full.h>

#include <array>
#include <limits>

#include "engine/kernels/conv/direct_kernel.h"
#include "engine/kernels/ops.h"
#include "engine/kernels/pool/norm_pool_kernel.h"
#include "test/gpu/places.h"
#include "test/kernels/reference/reference.h"
#include "test/kernels/tensors.h"

/// Convolutions of images of three channels, and pools behind norms, against their references.
namespace dstrain {
namespace {

using namespace test;

TEST_CASE("GPU: direct convolutions of images equal their references", "[gpu][kernels][conv]") {
  const auto type = GENERATE(from_range(with_products({at::kBFloat16, at::kHalf})));
  const auto [kernel, stride, channels] =
      GENERATE(std::array{7, 2, 64}, std::array{3, 1, 64}, std::array{3, 2, 32});
  const auto [samples, height, width] = GENERATE(
      std::array{1, 5, 4}, std::array{2, 14, 11}, std::array{3, 33, 40}, std::array{1, 9, 300},
      std::array{1, 9, 240}, std::array{1, 100, 100}, std::array{70, 28, 14});
  const bool last = GENERATE(false, true), relu = GENERATE(false, true);
  CAPTURE(c10::toString(type), kernel, stride, samples, height, width, last, relu);
  const int before = kernel / 2 - (last && kernel == 3 ? 1 : 0), after = kernel / 2;
  const auto out_side = [=, k = kernel, s = stride](int side) {
    return (side + before + after - k) / s + 1;
  };
  const std::int64_t out_height = out_side(height), out_width = out_side(width);
  const std::vector<std::int64_t> image{samples, 3, height, width},
      weights{channels, 3, kernel, kernel}, results{samples, out_height, out_width, channels};
  const int num_channels = channels, num_samples = samples, rows = height, columns = width,
            side = kernel, step = stride;
  compare_places(type, samples * out_height * out_width, [&](const Place& place) -> Tensors {
    test::Random random(9);
    // As images of a batch lie in memory, or channels last.
    at::Tensor x = place.put(random(image, type)).permute({0, 2, 3, 1});
    if (last) x = x.contiguous();
    const at::Tensor weight = place.put(random(weights, type)),
                     bias = place.put(random({num_channels}, type)),
                     grad = place.put(random(results, type));
    const kernels::DirectShape shape{.sample_stride = x.stride(0),
                                     .row_stride = x.stride(1),
                                     .column_stride = x.stride(2),
                                     .channel_stride = x.stride(3),
                                     .samples = num_samples,
                                     .height = rows,
                                     .width = columns,
                                     .out_height = static_cast<int>(out_height),
                                     .out_width = static_cast<int>(out_width),
                                     .kernel = side,
                                     .stride = step,
                                     .before = before,
                                     .out = num_channels};
    const at::Tensor y = place.fill(results, type), gradient = place.fill(weights, at::kFloat),
                     partial = place.fill(
                         {kernels::direct_partials(num_samples, shape.out_height, shape.out_width),
                          weight.numel()},
                         at::kFloat);
    place.run(kernels::cuda::direct_conv, kernels::reference::direct_conv,
              {.x = in(x),
               .weight = in(weight),
               .bias = relu ? in(bias) : nullptr,
               .y = out(y),
               .shape = shape,
               .relu = relu,
               .dtype = ops::kernel_dtype(x)});
    place.run(kernels::cuda::direct_conv_backward, kernels::reference::direct_conv_backward,
              {.x = in(x),
               .grad_y = in(grad),
               .partial = fp32(partial),
               .grad_weight = fp32(gradient),
               .shape = shape,
               .dtype = ops::kernel_dtype(x)});
    return {y, gradient};
  });
}

TEST_CASE("GPU: max pooling behind a norm or a bias equals its reference", "[gpu][kernels][conv]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const int kernel = GENERATE(2, 3), before = kernel - 2;
  const std::int64_t side = GENERATE(2, 3, 8, 15, 40), channels = GENERATE(3, 8, 72, 512);
  const bool all = GENERATE(false, true);
  if (side == 40 && channels == 512) return;  // long, and nothing new
  CAPTURE(c10::toString(type), kernel, side, channels, all);
  const auto out_side = [=](std::int64_t of) { return (of + 2 * before - kernel) / 2 + 1; };
  const kernels::PoolShape shape{.samples = 3,
                                 .height = side,
                                 .width = side + 3,
                                 .out_height = out_side(side),
                                 .out_width = out_side(side + 3),
                                 .channels = channels,
                                 .kernel = kernel,
                                 .stride = 2,
                                 .before = before};
  compare_places(type, 3 * side * (side + 3), [&](const Place& place) -> Tensors {
    test::Random random(4);
    // Few different numbers, many of them equal; powers of two, so that no rounding parts them.
    at::Tensor images = random({3, side, side + 3, channels}).mul_(2).round_().to(type);
    images.view(-1)[images.numel() / 2] = std::numeric_limits<double>::quiet_NaN();
    const at::Tensor with_nan = place.put(images);
    images.view(-1)[images.numel() / 2] = 1;
    const auto eighths = [&] { return place.put(random({channels}).mul_(8).round_().div_(8)); };
    const at::Tensor x = place.put(images), scale = eighths(), shift = eighths(),
                     mean = place.put(random({channels})), slope = place.put(random({channels})),
                     offset = place.put(random({channels})),
                     grad_y =
                         place.put(random({3, shape.out_height, shape.out_width, channels}, type));
    if (!all) grad_y.narrow(0, 2, 1).zero_();  // as what follows gives fillers
    const at::Tensor valid = valid_number(place, 3, all);
    const kernels::DType dtype = ops::kernel_dtype(x);
    const auto like = [&](const at::Tensor& t, at::ScalarType of) {
      return place.fill(t.sizes(), of);
    };
    const at::Tensor y = like(grad_y, type), where = like(grad_y, at::kByte),
                     plain = like(grad_y, type), plain_where = like(grad_y, at::kByte),
                     nan_y = like(grad_y, type), nan_where = like(grad_y, at::kByte);
    const auto pool = [&](const at::Tensor& image, bool norm, const at::Tensor& result,
                          const at::Tensor& places) {
      place.run(kernels::cuda::norm_max_pool, kernels::reference::norm_max_pool,
                {.x = in(image),
                 .scale = norm ? fp32(scale) : nullptr,
                 .shift = norm ? fp32(shift) : nullptr,
                 .y = out(result),
                 .place = places.mutable_data_ptr<std::uint8_t>(),
                 .shape = shape,
                 .dtype = dtype});
    };
    pool(x, true, y, where);
    pool(x, false, plain, plain_where);
    pool(with_nan, false, nan_y, nan_where);
    const std::int64_t rows = kernels::norm_pool_partials(shape);
    const at::Tensor partial = place.fill({rows, 2, channels}, at::kFloat),
                     bias_partial = place.fill({rows, channels}, at::kFloat),
                     bias = place.fill({channels}, at::kFloat), dx = like(x, type),
                     dz = like(x, type), fixed = like(x, type);
    const auto* places = where.const_data_ptr<std::uint8_t>();
    place.run(kernels::cuda::norm_max_pool_sums, kernels::reference::norm_max_pool_sums,
              {.x = in(x),
               .place = places,
               .grad_y = in(grad_y),
               .mean = fp32(mean),
               .valid = valid_of(valid),
               .partial = fp32(partial),
               .shape = shape,
               .dtype = dtype});
    const auto backward = [&](const at::Tensor& to, bool norm, bool moves) {
      place.run(kernels::cuda::norm_max_pool_backward, kernels::reference::norm_max_pool_backward,
                {.x = norm ? in(x) : nullptr,
                 .mean = norm ? fp32(mean) : nullptr,
                 .scale = norm ? fp32(scale) : nullptr,
                 .slope = moves ? fp32(slope) : nullptr,
                 .offset = moves ? fp32(offset) : nullptr,
                 .valid = norm ? valid_of(valid) : nullptr,
                 .place = places,
                 .grad_y = in(grad_y),
                 .grad_x = out(to),
                 .grad_bias = norm ? nullptr : fp32(bias),
                 .partial = norm ? nullptr : fp32(bias_partial),
                 .shape = shape,
                 .dtype = dtype});
    };
    backward(dx, true, true);
    backward(fixed, true, false);
    backward(dz, false, false);
    const auto numbers = [](const at::Tensor& t) { return t.to(at::kInt).to(at::kFloat); };
    return {y,
            plain,
            numbers(where),
            numbers(plain_where),
            nan_y.isnan().to(at::kFloat),
            partial.sum(0),
            bias,
            dx,
            fixed,
            dz};
  });
}

}  // namespace
}  // namespace dstrain
