#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <memory>
#include <vector>

#include "engine/kernels/batch_norm/ops_batch_norm.h"
#include "engine/kernels/conv/ops_conv.h"
#include "engine/kernels/conv/ops_depthwise.h"
#include "engine/kernels/excite/ops_excite.h"
#include "engine/kernels/pool/ops_norm_pool.h"
#include "engine/kernels/pool/ops_pool.h"
#include "engine/kernels/recurrent/ops_lstm.h"
#include "test/gpu/compare.h"
#include "test/kernels/tensors.h"

/// Operators of convolutional networks on a GPU against those on a CPU.
namespace dstrain {
namespace {

using namespace test;
using ops::ImageActivation;

/// Parameters, states and inputs on one device; the same numbers on each.
class Layers {
 public:
  Layers(at::Device device, at::ScalarType type) : device_(device), type_(type) {}

  [[nodiscard]] at::Tensor put(const at::Tensor& t) const { return t.to(device_); }
  [[nodiscard]] at::Tensor image(at::IntArrayRef sizes) { return put(random_(sizes, type_)); }
  Parameter& parameter(at::IntArrayRef sizes, bool trainable = true) {
    auto& made =
        parameters_.emplace_back(std::make_unique<Parameter>(random_.parameter(sizes, type_)));
    made->trainable = trainable;
    made->value = put(made->value);
    made->gradient = trainable ? put(made->gradient) : at::Tensor();
    return *made;
  }
  /// A norm of `channels`, whose statistics move.
  ops::BatchNormCall norm(std::int64_t channels, ImageActivation activation, bool fixed,
                          const at::Tensor& valid) {
    Parameter &weight = parameter({channels}), &bias = parameter({channels});
    states_.push_back(put(random_({channels}) * 0.1));
    states_.push_back(put(random_({channels}).abs() + 0.5));
    const at::Tensor mean = states_.end()[-2], variance = states_.end()[-1];
    sums_.push_back(put(at::zeros({channels})));
    sums_.push_back(put(at::zeros({channels})));
    ops::BatchNormCall call{.weight = weight,
                            .bias = bias,
                            .eps = 1e-3,
                            .running_mean = mean,
                            .running_variance = variance,
                            .fixed = fixed,
                            .valid = valid,
                            .activation = activation};
    if (!fixed) call.mean_sum = sums_.end()[-2], call.variance_sum = sums_.end()[-1];
    return call;
  }
  void add_gradients(Tensors& list) const {
    for (const auto& parameter : parameters_) {
      if (parameter->trainable) list.push_back(parameter->gradient);
    }
    list.insert(list.end(), sums_.begin(), sums_.end());
  }

 private:
  at::Device device_;
  at::ScalarType type_;
  test::Random random_{7};
  std::vector<std::unique_ptr<Parameter>> parameters_;
  Tensors states_, sums_;
};

template <typename Run>
void compare_devices(at::ScalarType type, const Run& run) {
  const Tensors gpu = run(at::Device(at::kCUDA)), again = run(at::Device(at::kCUDA)),
                cpu = run(at::Device(at::kCPU));
  for (std::size_t i = 0; i < gpu.size(); ++i) {
    CAPTURE(i);
    REQUIRE(far(gpu[i], cpu[i], type, 8192) == "");
    REQUIRE(gpu[i].equal(again[i]));
  }
}

TEST_CASE("GPU: a depthwise convolution between norms equals that on the CPU",
          "[gpu][kernels][conv]") {
  const auto type = GENERATE(from_range(with_products({at::kFloat, at::kBFloat16, at::kHalf})));
  const bool normed = GENERATE(false, true), fixed = GENERATE(false, true);
  const auto [kernel, stride, before, after] =
      GENERATE(std::array{3, 1, 1, 1}, std::array{3, 2, 0, 1}, std::array{5, 2, 2, 2},
               std::array{5, 1, 2, 2}, std::array{7, 1, 3, 3});
  CAPTURE(c10::toString(type), normed, fixed, kernel, stride, before);
  const std::int64_t channels = 24;
  compare_devices(type, [&](at::Device device) -> Tensors {
    Layers layers(device, type);
    const at::Tensor x = leaf(layers.image({4, 14, 10, channels})),
                     valid = layers.put(at::full({}, 3, at::kInt));
    const ops::ConvShape shape{.in = channels,
                               .out = channels,
                               .kernel = kernel,
                               .stride = stride,
                               .before = before,
                               .after = after,
                               .groups = channels};
    Parameter& weight = layers.parameter({channels, 1, kernel, kernel});
    const ops::BatchNormCall first = layers.norm(channels, ImageActivation::relu6, fixed, valid),
                             second = layers.norm(channels, ImageActivation::silu, fixed, valid);
    const at::Tensor y = ops::depthwise_norm(x, normed ? &first : nullptr, shape, weight, second);
    y.backward(layers.image(y.sizes()));
    Tensors results{y, x.grad()};
    layers.add_gradients(results);
    return results;
  });
}

TEST_CASE("GPU: batch norm, with a residual or a convolution behind it, equals that on the CPU",
          "[gpu][kernels][conv]") {
  const auto type = GENERATE(from_range(with_products({at::kFloat, at::kBFloat16, at::kHalf})));
  const bool fixed = GENERATE(false, true), fillers = GENERATE(false, true);
  const std::int64_t channels = GENERATE(6, 32);
  CAPTURE(c10::toString(type), fixed, fillers, channels);
  compare_devices(type, [&](at::Device device) -> Tensors {
    Layers layers(device, type);
    const at::Tensor x = leaf(layers.image({4, 9, 10, channels})),
                     residual = leaf(layers.image({4, 9, 10, channels}));
    const at::Tensor valid = fillers ? layers.put(at::full({}, 3, at::kInt)) : at::Tensor();
    const at::Tensor y =
        ops::batch_norm(x, layers.norm(channels, ImageActivation::relu, fixed, valid), residual);
    const ops::ConvShape shape{.in = channels, .out = 16, .kernel = 3, .before = 1, .after = 1};
    const at::Tensor z =
        ops::batch_norm_conv(y, layers.norm(channels, ImageActivation::hardswish, fixed, valid),
                             shape, layers.parameter({16, channels, 3, 3}));
    z.backward(layers.image(z.sizes()));
    Tensors results{y, z, x.grad(), residual.grad()};
    layers.add_gradients(results);
    return results;
  });
}

TEST_CASE("GPU: convolutions of few and of many channels equal those on the CPU",
          "[gpu][kernels][conv]") {
  const auto type = GENERATE(from_range(with_products({at::kFloat, at::kBFloat16, at::kHalf})));
  const auto [channels, kernel, stride, before, after] =
      GENERATE(std::array{3, 3, 2, 1, 1}, std::array{3, 7, 2, 3, 3}, std::array{3, 3, 1, 1, 1},
               std::array{1, 3, 1, 0, 1}, std::array{16, 3, 1, 1, 1}, std::array{16, 1, 2, 0, 0},
               std::array{16, 1, 1, 0, 0});
  const bool bias = GENERATE(false, true);
  const std::int64_t out = GENERATE(24, 32, 64);  // of three channels some go without windows
  CAPTURE(c10::toString(type), channels, kernel, stride, before, bias, out);
  compare_devices(type, [&](at::Device device) -> Tensors {
    Layers layers(device, type);
    // As images of a batch lie in memory.
    const at::Tensor stored = leaf(layers.image({4, channels, 14, 11})),
                     x = stored.permute({0, 2, 3, 1});
    const ops::ConvShape shape{.in = channels,
                               .out = out,
                               .kernel = kernel,
                               .stride = stride,
                               .before = before,
                               .after = after};
    Parameter& weight = layers.parameter({out, channels, kernel, kernel});
    Parameter* added = bias ? &layers.parameter({out}) : nullptr;
    const at::Tensor y =
        ops::conv(x, shape, weight, added, bias ? ImageActivation::relu : ImageActivation::none);
    y.backward(layers.image(y.sizes()));
    Tensors results{y, stored.grad()};
    layers.add_gradients(results);
    return results;
  });
}

TEST_CASE("GPU: squeeze and excitation behind a depthwise convolution equals that on the CPU",
          "[gpu][kernels][conv]") {
  const auto type = GENERATE(from_range(with_products({at::kFloat, at::kBFloat16, at::kHalf})));
  const bool normed = GENERATE(false, true), fixed = GENERATE(false, true);
  // A kernel of seven has no depthwise kernel of its own.
  const auto [kernel, stride, squeezed] =
      GENERATE(std::array{3, 1, 4}, std::array{5, 2, 10}, std::array{7, 1, 6});
  CAPTURE(c10::toString(type), normed, fixed, kernel, stride);
  const std::int64_t channels = 24;
  compare_devices(type, [&](at::Device device) -> Tensors {
    Layers layers(device, type);
    const at::Tensor x = leaf(layers.image({4, 14, 10, channels})),
                     valid = layers.put(at::full({}, 3, at::kInt));
    const ops::ConvShape shape{.in = channels,
                               .out = channels,
                               .kernel = kernel,
                               .stride = stride,
                               .before = kernel / 2,
                               .after = kernel / 2,
                               .groups = channels};
    Parameter& weight = layers.parameter({channels, 1, kernel, kernel});
    const ops::BatchNormCall first = layers.norm(channels, ImageActivation::silu, fixed, valid),
                             second = layers.norm(channels, ImageActivation::silu, fixed, valid);
    const ops::ExciteCall excite{.reduce = layers.parameter({squeezed, channels, 1, 1}),
                                 .reduce_bias = layers.parameter({squeezed}),
                                 .expand = layers.parameter({channels, squeezed, 1, 1}),
                                 .expand_bias = layers.parameter({channels}),
                                 .activation = ImageActivation::silu};
    const at::Tensor y =
        ops::excited_depthwise(x, {.before = normed ? &first : nullptr,
                                   .depthwise = shape,
                                   .depthwise_weight = weight,
                                   .after = second,
                                   .excite = excite,
                                   .project = {.in = channels, .out = 16},
                                   .project_weight = layers.parameter({16, channels, 1, 1})});
    at::Tensor dy = layers.image(y.sizes());
    dy.narrow(0, 3, 1).zero_();  // as what follows gives fillers
    y.backward(dy);
    Tensors results{y, x.grad()};
    layers.add_gradients(results);
    return results;
  });
}

TEST_CASE("GPU: a norm that leaves out samples beside a residual equals that on the CPU",
          "[gpu][kernels][conv]") {
  const auto type = GENERATE(from_range(with_products({at::kFloat, at::kBFloat16, at::kHalf})));
  const bool fixed = GENERATE(false, true), fillers = GENERATE(false, true);
  const std::int64_t channels = GENERATE(6, 40);
  CAPTURE(c10::toString(type), fixed, fillers, channels);
  compare_devices(type, [&](at::Device device) -> Tensors {
    Layers layers(device, type);
    const at::Tensor x = leaf(layers.image({9, 7, 5, channels})),
                     residual = leaf(layers.image({9, 7, 5, channels}));
    const at::Tensor valid = fillers ? layers.put(at::full({}, 8, at::kInt)) : at::Tensor();
    ops::BatchNormCall call = layers.norm(channels, ImageActivation::none, fixed, valid);
    call.drop = {.share = 0.4, .seed = layers.put(at::full({}, 11, at::kLong)), .place = 5};
    const at::Tensor y = ops::batch_norm(x, call, residual);
    at::Tensor dy = layers.image(y.sizes());
    if (fillers) dy.narrow(0, 8, 1).zero_();
    y.backward(dy);
    Tensors results{y, x.grad(), residual.grad()};
    layers.add_gradients(results);
    return results;
  });
}

TEST_CASE(
    "GPU: a residual around a product leaves its gradient to it, which equals that on the CPU",
    "[gpu][kernels][conv]") {
  const auto type = GENERATE(from_range(with_products({at::kFloat, at::kBFloat16, at::kHalf})));
  const auto activation = GENERATE(ImageActivation::none, ImageActivation::relu);
  CAPTURE(c10::toString(type), static_cast<int>(activation));
  compare_devices(type, [&](at::Device device) -> Tensors {
    Layers layers(device, type);
    const at::Tensor x = leaf(layers.image({4, 9, 10, 16}));
    const ops::ResidualGradient left(x);
    REQUIRE(left.used() == device.is_cuda());
    const ops::ConvShape widen{.in = 16, .out = 24}, narrow{.in = 24, .out = 16};
    const at::Tensor h =
        ops::conv(x, widen, layers.parameter({24, 16, 1, 1}), nullptr, ImageActivation::none, left);
    const at::Tensor z = ops::conv(h, narrow, layers.parameter({16, 24, 1, 1}));
    const at::Tensor y = ops::batch_norm(z, layers.norm(16, activation, false, {}), x, left);
    y.backward(layers.image(y.sizes()));
    Tensors results{y, x.grad()};
    layers.add_gradients(results);
    return results;
  });
}

TEST_CASE("GPU: steps of an LSTM equal those on the CPU", "[gpu][kernels][conv]") {
  const auto type = GENERATE(from_range(with_products({at::kFloat, at::kBFloat16, at::kHalf})));
  const std::int64_t rows = GENERATE(1, 33), width = GENERATE(5, 256);
  CAPTURE(c10::toString(type), rows, width);
  compare_devices(type, [&](at::Device device) -> Tensors {
    Layers layers(device, type);
    const at::Tensor inputs = leaf(layers.image({rows, 2, 4 * width})),
                     of_state = leaf(layers.image({rows, 4 * width})),
                     cell = leaf(layers.image({rows, width}).to(at::kFloat));
    const std::vector<at::Tensor> of_step = inputs.unbind(1);
    // The first state leads nowhere, so that its gradient is undefined.
    const auto [unused, between] = ops::lstm_step(of_step[0], of_state, cell);
    const auto [state, next] = ops::lstm_step(of_step[1], of_state, between);
    state.backward(layers.image(state.sizes()));
    return {unused, between, state, next, inputs.grad(), of_state.grad(), cell.grad()};
  });
}

TEST_CASE("GPU: a frozen norm and a frozen depthwise convolution have no gradients",
          "[gpu][kernels][conv]") {
  compare_devices(at::kFloat, [&](at::Device device) -> Tensors {
    Layers layers(device, at::kFloat);
    const at::Tensor x = leaf(layers.image({2, 7, 7, 8}));
    Parameter& weight = layers.parameter({8, 1, 3, 3}, /*trainable=*/false);
    ops::BatchNormCall first = layers.norm(8, ImageActivation::relu6, true, {}),
                       second = layers.norm(8, ImageActivation::relu6, false, {});
    for (Parameter* frozen : {&first.weight, &first.bias, &second.bias}) {
      frozen->trainable = false;
      frozen->gradient = at::Tensor();
    }
    const ops::ConvShape shape{
        .in = 8, .out = 8, .kernel = 3, .before = 1, .after = 1, .groups = 8};
    const at::Tensor y = ops::depthwise_norm(x, &first, shape, weight, second);
    y.backward(layers.image(y.sizes()));
    Tensors results{y, x.grad()};
    layers.add_gradients(results);
    return results;
  });
}

/// Every window of 2 x 2 or 3 x 3 has numbers that are far apart, whatever little is added.
at::Tensor stepped_image(std::int64_t samples, std::int64_t height, std::int64_t width,
                         std::int64_t channels) {
  constexpr int kFactors[] = {1, 2, 4, 5, 7, 8};
  at::Tensor image = at::zeros({samples, height, width, channels});
  auto to = image.accessor<float, 4>();
  for (std::int64_t n = 0; n < samples; ++n) {
    for (std::int64_t y = 0; y < height; ++y) {
      for (std::int64_t x = 0; x < width; ++x) {
        for (std::int64_t c = 0; c < channels; ++c) {
          const std::int64_t rank = (y % 3 * 3 + x % 3) * kFactors[(n + c) % 6] + n + c / 6;
          to[n][y][x][c] = 0.5f * static_cast<float>(rank % 9) - 1.25f;
        }
      }
    }
  }
  return image;
}

TEST_CASE("GPU: pools behind norms and convolutions equal those on the CPU",
          "[gpu][kernels][conv]") {
  const auto type = GENERATE(from_range(with_products({at::kFloat, at::kBFloat16, at::kHalf})));
  const int kernel = GENERATE(2, 3);
  const bool norm = GENERATE(false, true), fixed = norm && GENERATE(false, true),
             fillers = norm && GENERATE(false, true);
  CAPTURE(c10::toString(type), kernel, norm, fixed, fillers);
  const std::int64_t channels = 16;
  compare_devices(type, [&](at::Device device) -> Tensors {
    Layers layers(device, type);
    const at::Tensor x = leaf(layers.put(stepped_image(4, 15, 22, channels).to(type))),
                     valid = fillers ? layers.put(at::full({}, 3, at::kInt)) : at::Tensor();
    const ops::PoolShape pool{.kernel = kernel, .stride = 2, .padding = kernel - 2};
    at::Tensor y;
    if (norm) {
      y = ops::batch_norm_max_pool(x, layers.norm(channels, ImageActivation::relu, fixed, valid),
                                   pool);
    } else {
      const ops::ConvShape shape{
          .in = channels, .out = channels, .kernel = 3, .before = 1, .after = 1};
      Parameter& weight = layers.parameter({channels, channels, 3, 3});
      weight.value.zero_();
      for (std::int64_t c = 0; c < channels; ++c) weight.value[c][(5 * c) % channels][1][1] = 1;
      y = ops::conv_max_pool(x, shape, weight, &layers.parameter({channels}), pool);
    }
    at::Tensor dy = layers.image(y.sizes());
    if (fillers) dy.narrow(0, 3, 1).zero_();
    y.backward(dy);
    Tensors results{y, x.grad()};
    layers.add_gradients(results);
    return results;
  });
}

TEST_CASE("GPU: a shortcut leaves its gradient to a product, which equals that on the CPU",
          "[gpu][kernels][conv]") {
  const auto type = GENERATE(from_range(with_products({at::kFloat, at::kBFloat16, at::kHalf})));
  const auto activation = GENERATE(ImageActivation::none, ImageActivation::relu);
  const std::int64_t stride = GENERATE(1, 2);
  const bool fixed = GENERATE(false, true), fillers = GENERATE(false, true);
  CAPTURE(c10::toString(type), static_cast<int>(activation), stride, fixed, fillers);
  // A CPU rounds the other norm before the sum, so that a ReLU would part results near zero.
  if (type != at::kFloat && activation != ImageActivation::none) return;
  compare_devices(type, [&](at::Device device) -> Tensors {
    Layers layers(device, type);
    const at::Tensor x = leaf(layers.image({4, 8, 10, 16})),
                     valid = fillers ? layers.put(at::full({}, 3, at::kInt)) : at::Tensor();
    const ops::ResidualGradient left(x);
    const ops::ConvShape first{.in = 16, .out = 24},
        second{.in = 24, .out = 32, .kernel = 3, .stride = stride, .before = 1, .after = 1},
        across{.in = 16, .out = 32, .stride = stride};
    const at::Tensor h =
        ops::conv(x, first, layers.parameter({24, 16, 1, 1}), nullptr, ImageActivation::none, left);
    const at::Tensor other = ops::conv(x, across, layers.parameter({32, 16, 1, 1}), nullptr,
                                       ImageActivation::none, {}, left);
    const at::Tensor z = ops::conv(h, second, layers.parameter({32, 24, 3, 3}));
    const at::Tensor y = ops::batch_norm_pair(z, layers.norm(32, activation, fixed, valid), other,
                                              layers.norm(32, ImageActivation::none, fixed, valid));
    const at::Tensor dy = layers.image(y.sizes());
    if (fillers) dy.narrow(0, 3, 1).zero_();
    y.backward(dy);
    Tensors results{y, x.grad()};
    layers.add_gradients(results);
    return results;
  });
}

TEST_CASE("GPU: pools equal those on the CPU", "[gpu][kernels][conv]") {
  const auto type = GENERATE(from_range(with_products({at::kFloat, at::kBFloat16, at::kHalf})));
  const auto [kernel, padding] = GENERATE(std::array{2, 0}, std::array{3, 1});
  CAPTURE(c10::toString(type), kernel);
  compare_devices(type, [&](at::Device device) -> Tensors {
    Layers layers(device, type);
    const at::Tensor x = leaf(layers.image({3, 9, 14, 16}));
    const at::Tensor y = ops::max_pool(x, {.kernel = kernel, .stride = 2, .padding = padding}),
                     mean = ops::average_pool(y);
    mean.backward(layers.image(mean.sizes()));
    return {y, mean, x.grad()};
  });
}

}  // namespace
}  // namespace dstrain
