#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

#include "engine/kernels/conv/depthwise_tiles.h"
#include "engine/kernels/conv/kernels.h"
#include "engine/kernels/op_support.h"
#include "test/kernels/depthwise_on_host.h"
#include "test/kernels/image_bounds.h"
#include "test/kernels/reference/reference.h"
#include "test/kernels/tensors.h"
#include "test/support/catch.h"

/// Depthwise convolutions: the reference, and the GPU's code run on the host, against ATen.
namespace dstrain {
namespace {

using namespace test;
using kernels::Activation;
using kernels::DepthwiseShape;

struct DepthwiseCase {
  std::int64_t samples, height, width, channels;
  int kernel, stride, before;
  int after;  ///< zeros below and to the right
};

DepthwiseShape shape_of_case(const DepthwiseCase& c) {
  const auto out = [&](std::int64_t side) {
    return (side + c.before + c.after - c.kernel) / c.stride + 1;
  };
  return {.samples = c.samples,
          .height = c.height,
          .width = c.width,
          .out_height = out(c.height),
          .out_width = out(c.width),
          .channels = c.channels,
          .kernel = c.kernel,
          .stride = c.stride,
          .before = c.before};
}

/// Even and odd sizes, strips that end with the image and beyond it, several segments of rows,
/// TensorFlow's uneven padding, images smaller than the kernel.
const DepthwiseCase kDepthwiseCases[] = {
    {2, 14, 14, 8, 3, 1, 1, 1},  {1, 5, 4, 72, 3, 1, 1, 1},  {2, 15, 13, 10, 3, 1, 1, 1},
    {1, 45, 9, 4, 3, 1, 1, 1},   {2, 14, 14, 8, 3, 2, 1, 1}, {1, 7, 5, 66, 3, 2, 1, 1},
    {2, 16, 14, 8, 3, 2, 0, 1},  {1, 1, 1, 8, 3, 1, 1, 1},   {3, 2, 3, 8, 3, 2, 1, 1},
    {2, 14, 14, 8, 5, 1, 2, 2},  {1, 4, 5, 70, 5, 1, 2, 2},  {1, 14, 15, 8, 5, 2, 2, 2},
    {2, 16, 14, 12, 5, 2, 1, 2}, {1, 2, 2, 2, 5, 2, 2, 2},   {1, 40, 5, 8, 5, 2, 1, 2},
    {2, 9, 8, 8, 3, 1, 0, 0},    {1, 12, 11, 8, 5, 1, 4, 0},
};

/// What runs: the GPU's code on the host, or the reference, whose arithmetic knows no type.
struct Version {
  at::ScalarType type;
  bool on_host;
};
const Version kVersions[] = {{at::kFloat, true}, {at::kBFloat16, true}, {at::kBFloat16, false}};

/// What stands around the convolution.
struct Around {
  bool normed, follows, gated;
};
const Around kAround[] = {
    {false, false, false}, {true, false, false}, {false, true, false}, {true, true, true}};

/// For tensors as small as these a second thread only costs.
class OneThread {
 public:
  OneThread() { at::set_num_threads(1); }
  ~OneThread() { at::set_num_threads(threads_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int threads_ = at::get_num_threads();
};

kernels::DType kernel_type(at::ScalarType type) {
  return type == at::kFloat ? kernels::DType::f32 : kernels::DType::bf16;
}
float* fp32_or_null(const at::Tensor& t) {
  return t.defined() ? t.mutable_data_ptr<float>() : nullptr;
}

/// The sums over all elements of each channel, [C].
Bounded channel_sums(const Bounded& image) {
  return row_sum(viewed(image, [](const at::Tensor& t) { return t.reshape({-1, t.size(3)}); }));
}
Bounded of_channel(const at::Tensor& t) { return {t}; }

/// Only the samples that count.
Bounded counted(const Bounded& image, std::int64_t valid) {
  return viewed(image, [&](const at::Tensor& t) { return t.narrow(0, 0, valid); });
}
Bounded fillers_cleared(const Bounded& image, std::int64_t valid) {
  return viewed(image, [&](const at::Tensor& t) {
    at::Tensor copy = t.clone();
    copy.narrow(0, valid, t.size(0) - valid).zero_();
    return copy;
  });
}

TEST_CASE("depthwise convolution with the norm before it equals ATen's", "[kernels][reference]") {
  const OneThread one_thread;
  const auto [type, on_host] = GENERATE(from_range(std::begin(kVersions), std::end(kVersions)));
  const DepthwiseCase c =
      GENERATE(from_range(std::begin(kDepthwiseCases), std::end(kDepthwiseCases)));
  const bool normed = GENERATE(false, true);
  CAPTURE(c10::toString(type), c.samples, c.height, c.width, c.channels, c.kernel, c.stride,
          c.before, normed, on_host);
  const DepthwiseShape s = shape_of_case(c);
  const auto activation = static_cast<Activation>(c.height % 5);
  const DepthwiseMaps maps{s};
  test::Random random(1);
  const at::Tensor x = random({c.samples, c.height, c.width, c.channels}, type),
                   weight = random({c.channels, c.kernel * c.kernel}, type),
                   scale = random({c.channels}) * 2, shift = random({c.channels}),
                   centre = at::full({c.channels}, 77, at::kFloat);
  const std::int64_t valid = c.samples - (c.samples > 1 ? 1 : 0);
  const at::Tensor valid_number = at::full({1}, valid, at::kInt);
  const at::Tensor y = at::full({c.samples, s.out_height, s.out_width, c.channels}, 77, type);
  const at::Tensor partial =
      at::full({kernels::depthwise_partials(s, kernel_type(type)), 2, c.channels}, 77, at::kFloat);
  const kernels::Depthwise args{.x = x.const_data_ptr(),
                                .scale = normed ? fp32_or_null(scale) : nullptr,
                                .shift = normed ? fp32_or_null(shift) : nullptr,
                                .weight = weight.const_data_ptr(),
                                .y = y.mutable_data_ptr(),
                                .centre = fp32_or_null(centre),
                                .valid = valid_number.const_data_ptr<int>(),
                                .partial = fp32_or_null(partial),
                                .shape = s,
                                .activation = activation,
                                .dtype = kernel_type(type)};
  on_host ? depthwise_on_host(args) : kernels::reference::depthwise(args);

  Bounded seen(x);
  if (normed)
    seen = rounded(activated(seen * of_channel(scale) + of_channel(shift), activation), type);
  const auto convolve = [&](const at::Tensor& a, const at::Tensor& b) {
    return maps.convolve(a, b);
  };
  const Bounded exact = bilinear(convolve, seen, Bounded(weight), c.kernel * c.kernel);
  REQUIRE(far(y, rounded(exact, type)) == "");
  const Bounded middle = viewed(exact, [&](const at::Tensor& t) {
    return t.select(0, 0).select(0, s.out_height / 2).select(0, s.out_width / 2);
  });
  REQUIRE(far(centre, middle) == "");
  // The sums are of what was written.
  const Bounded off = counted(Bounded(y), valid) - of_channel(centre);
  REQUIRE(far(partial.select(1, 0).sum(0), channel_sums(off)) == "");
  REQUIRE(far(partial.select(1, 1).sum(0), channel_sums(off * off)) == "");
}

TEST_CASE("backward of depthwise convolution between two norms equals ATen's",
          "[kernels][reference]") {
  const OneThread one_thread;
  const auto [type, on_host] = GENERATE(from_range(std::begin(kVersions), std::end(kVersions)));
  const DepthwiseCase c =
      GENERATE(from_range(std::begin(kDepthwiseCases), std::end(kDepthwiseCases)));
  const auto [normed, follows, gated] =
      GENERATE(from_range(std::begin(kAround), std::end(kAround)));
  CAPTURE(c10::toString(type), c.samples, c.height, c.width, c.channels, c.kernel, c.stride,
          c.before, normed, follows, gated, on_host);
  const DepthwiseShape s = shape_of_case(c);
  const auto before = static_cast<Activation>((c.height + 1) % 5),
             after = static_cast<Activation>((c.width + 3) % 5);
  const DepthwiseMaps maps{s};
  test::Random random(2);
  const auto vector = [&] { return random({c.channels}); };
  const std::vector<std::int64_t> in{c.samples, c.height, c.width, c.channels};
  const std::vector<std::int64_t> out{c.samples, s.out_height, s.out_width, c.channels};
  const at::Tensor x = random({c.samples, c.height, c.width, c.channels}, type),
                   weight = random({c.channels, c.kernel * c.kernel}, type),
                   grad = random(out, type), y = random(out, type), mean = vector(),
                   scale = vector() * 2, shift = vector(), next_mean = vector(),
                   next_scale = vector() * 2, next_shift = vector(), slope = vector(),
                   offset = vector(), gate = random({c.samples, c.channels}),
                   grad_mean = random({c.samples, c.channels}),
                   grad_weight = random({c.channels, c.kernel * c.kernel});
  const at::Tensor earlier = grad_weight.clone();
  const std::int64_t valid = c.samples - (c.samples > 1 ? 1 : 0);
  const at::Tensor valid_number = at::full({1}, valid, at::kInt);
  const at::Tensor grad_x = at::full(in, 77, type);
  const std::int64_t rows = kernels::depthwise_backward_partials(s, kernel_type(type));
  const at::Tensor partial = at::full({rows, 2, c.channels}, 77, at::kFloat),
                   weight_partial =
                       at::full({rows, c.kernel * c.kernel, c.channels}, 77, at::kFloat);
  const kernels::DepthwiseBackward args{
      .x = x.const_data_ptr(),
      .mean = normed ? fp32_or_null(mean) : nullptr,
      .scale = normed ? fp32_or_null(scale) : nullptr,
      .shift = normed ? fp32_or_null(shift) : nullptr,
      .weight = weight.const_data_ptr(),
      .grad = grad.const_data_ptr(),
      .following = {.y = follows ? y.const_data_ptr() : nullptr,
                    .mean = fp32_or_null(next_mean),
                    .scale = fp32_or_null(next_scale),
                    .shift = fp32_or_null(next_shift),
                    .slope = fp32_or_null(slope),
                    .offset = fp32_or_null(offset),
                    .gate = gated ? fp32_or_null(gate) : nullptr,
                    .grad_mean = gated ? fp32_or_null(grad_mean) : nullptr,
                    .activation = after},
      .valid = valid_number.const_data_ptr<int>(),
      .grad_x = grad_x.mutable_data_ptr(),
      .partial = fp32_or_null(partial),
      .grad_weight = fp32_or_null(grad_weight),
      .weight_partial = fp32_or_null(weight_partial),
      .shape = s,
      .activation = before,
      .dtype = kernel_type(type)};
  on_host ? depthwise_on_host(args) : kernels::reference::depthwise_backward(args);

  Bounded g(grad);
  if (follows) {
    const auto per_sample = [&](const at::Tensor& t) {
      return Bounded(t.to(at::kDouble).view({c.samples, 1, 1, c.channels}));
    };
    if (gated) {
      const double pixels = static_cast<double>(s.out_height * s.out_width);
      g = g * per_sample(gate) + per_sample(grad_mean) * (1 / pixels);
    }
    const Bounded z = Bounded(y) * of_channel(next_scale) + of_channel(next_shift);
    const Bounded dz = g * activation_slope(z, after);
    g = rounded(of_channel(next_scale) * dz +
                    ((Bounded(y) - of_channel(next_mean)) * of_channel(slope) + of_channel(offset)),
                type);
  }
  g = fillers_cleared(g, valid);
  Bounded seen(x);
  const Bounded z = Bounded(x) * of_channel(scale) + of_channel(shift);
  if (normed) seen = rounded(activated(z, before), type);
  const auto to_input = [&](const at::Tensor& a, const at::Tensor& b) {
    return maps.input_gradient(a, b);
  };
  const auto to_weight = [&](const at::Tensor& a, const at::Tensor& b) {
    return maps.weight_gradient(a, b);
  };
  Bounded dx = bilinear(to_input, g, Bounded(weight), c.kernel * c.kernel);
  if (normed) dx = dx * activation_slope(z, before);
  REQUIRE(far(grad_x, fillers_cleared(rounded(dx, type), valid)) == "");
  const Bounded dw = bilinear(to_weight, g, seen, c.samples * s.out_height * s.out_width);
  REQUIRE(far(grad_weight, dw + Bounded(earlier)) == "");
  // The sums are of what was written.
  const Bounded written = counted(Bounded(grad_x), valid), own = counted(Bounded(x), valid);
  REQUIRE(far(partial.select(1, 0).sum(0), channel_sums(written)) == "");
  const Bounded off = normed ? own - of_channel(mean) : own;
  REQUIRE(far(partial.select(1, 1).sum(0), channel_sums(written * off)) == "");
}

TEST_CASE("tiles of depthwise convolutions cover each output and channel once", "[kernels]") {
  const std::int64_t samples = GENERATE(1, 5, 256), side = GENERATE(1, 7, 15, 56, 190),
                     channels = GENERATE(2, 16, 144, 672, 1280);
  const int columns = GENERATE(4, 7, 8), kernel = columns == 7 ? 3 : 5, resident = GENERATE(2, 5);
  CAPTURE(samples, side, channels, columns);
  const kernels::DepthwiseTiles t =
      kernels::depthwise_tiles(samples, side, side, channels, columns, kernel, resident);
  REQUIRE(t.lanes <= 32);
  REQUIRE(t.threads() <= kernels::kDepthwiseThreads);
  REQUIRE(2 * t.lanes * t.slabs >= channels);
  REQUIRE(2 * t.lanes * (t.slabs - 1) < channels);
  REQUIRE(t.row_blocks * t.items_per_slot * t.slots >= t.items);
  REQUIRE((t.row_blocks - 1) * t.items_per_slot * t.slots < t.items);
  REQUIRE(t.row_blocks * t.slabs <= std::max<std::int64_t>(2112, t.slabs));
  REQUIRE(t.items == samples * t.segments * t.strips);
  // The items of one sample, and the first of the last one.
  std::vector<int> covered(static_cast<std::size_t>(side * side));
  for (std::int64_t item = 0; item < std::int64_t{t.segments} * t.strips; ++item) {
    const auto strip = kernels::depthwise_item(t, item, static_cast<int>(side));
    const bool sound =
        strip.sample == 0 && strip.first_row < strip.end_row && strip.first_row % 2 == 0;
    if (!sound) FAIL("item " << item);
    for (std::int64_t y = strip.first_row; y < strip.end_row; ++y) {
      for (std::int64_t x = strip.first_column;
           x < std::min<std::int64_t>(strip.first_column + columns, side); ++x)
        ++covered[static_cast<std::size_t>(y * side + x)];
    }
  }
  REQUIRE(std::ranges::all_of(covered, [](int times) { return times == 1; }));
  REQUIRE(kernels::depthwise_item(t, t.items - 1, static_cast<int>(side)).sample == samples - 1);
}

}  // namespace
}  // namespace dstrain
