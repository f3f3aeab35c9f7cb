#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <array>

#include "engine/base/error.h"
#include "engine/kernels/batch_norm/ops_batch_norm.h"
#include "engine/kernels/conv/ops_conv.h"
#include "engine/kernels/pool/ops_norm_pool.h"
#include "test/kernels/tensors.h"
#include "test/support/catch.h"

/// Operators that contain several steps against the operators of the steps, on a CPU.
namespace dstrain {
namespace {

using ops::ImageActivation;
using Tensors = std::vector<at::Tensor>;

struct Norm {
  Parameter weight, bias;
  at::Tensor mean, variance;

  Norm(test::Random& random, std::int64_t channels)
      : weight(random.parameter({channels}, at::kFloat)),
        bias(random.parameter({channels}, at::kFloat)),
        mean(random({channels})),
        variance(random({channels}).abs() + 0.5) {}
  ops::BatchNormCall call(ImageActivation activation, const at::Tensor& valid = {}) {
    return {.weight = weight,
            .bias = bias,
            .running_mean = mean,
            .running_variance = variance,
            .valid = valid,
            .activation = activation};
  }
};

void require_equal(const Tensors& one, const Tensors& other) {
  REQUIRE(one.size() == other.size());
  for (std::size_t i = 0; i < one.size(); ++i) {
    CAPTURE(i);
    REQUIRE(at::allclose(one[i], other[i], 1e-5, 1e-5));
  }
}

TEST_CASE("a pool in the operator of a norm or a convolution equals one behind it",
          "[kernels][pool]") {
  const int kernel = GENERATE(2, 3);
  const bool norm = GENERATE(false, true);
  CAPTURE(kernel, norm);
  const ops::PoolShape pool{.kernel = kernel, .stride = 2, .padding = kernel - 2};
  REQUIRE(ops::norm_pool_fits(pool));
  REQUIRE_FALSE(ops::norm_pool_fits({.kernel = 3, .stride = 1, .padding = 1}));
  const auto run = [&](bool together) -> Tensors {
    test::Random random(3);
    const at::Tensor x = test::leaf(random({3, 9, 6, 5}));
    const at::Tensor valid = at::full({}, 2, at::kInt);
    Norm of(random, 5);
    Parameter weight = random.parameter({5, 5, 3, 3}, at::kFloat),
              bias = random.parameter({5}, at::kFloat);
    const ops::ConvShape shape{.in = 5, .out = 5, .kernel = 3, .before = 1, .after = 1};
    at::Tensor y;
    if (norm) {
      const ops::BatchNormCall call = of.call(ImageActivation::relu, valid);
      y = together ? ops::batch_norm_max_pool(x, call, pool)
                   : ops::max_pool(ops::batch_norm(x, call), pool);
    } else {
      y = together ? ops::conv_max_pool(x, shape, weight, &bias, pool)
                   : ops::max_pool(ops::conv(x, shape, weight, &bias, ImageActivation::relu), pool);
    }
    at::Tensor dy = random(y.sizes());
    if (norm) dy.narrow(0, 2, 1).zero_();
    y.backward(dy);
    return {y, x.grad(), of.weight.gradient, of.bias.gradient, weight.gradient, bias.gradient};
  };
  require_equal(run(true), run(false));
}

TEST_CASE("two norms with one sum equal a norm beside a residual", "[kernels][batch_norm]") {
  const auto activation = GENERATE(ImageActivation::none, ImageActivation::relu);
  const auto run = [&](bool together) -> Tensors {
    test::Random random(3);
    const at::Tensor x = test::leaf(random({3, 4, 6, 5})), other = test::leaf(random(x.sizes()));
    const at::Tensor valid = at::full({}, 2, at::kInt);
    Norm first(random, 5), second(random, 5);
    const ops::BatchNormCall call = first.call(activation, valid),
                             beside = second.call(ImageActivation::none, valid);
    const at::Tensor y = together ? ops::batch_norm_pair(x, call, other, beside)
                                  : ops::batch_norm(x, call, ops::batch_norm(other, beside));
    at::Tensor dy = random(y.sizes());
    dy.narrow(0, 2, 1).zero_();
    y.backward(dy);
    return {y,
            x.grad(),
            other.grad(),
            first.weight.gradient,
            first.bias.gradient,
            second.weight.gradient,
            second.bias.gradient};
  };
  require_equal(run(true), run(false));
  test::Random random(3);
  Norm first(random, 5), second(random, 5);
  const at::Tensor x = random({3, 4, 6, 5});
  REQUIRE_THROWS_AS(ops::batch_norm_pair(x, first.call(ImageActivation::relu), x,
                                         second.call(ImageActivation::relu)),
                    Error);
}

}  // namespace
}  // namespace dstrain
