#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include "engine/base/error.h"
#include "engine/kernels/activation/ops_drop_path.h"
#include "engine/kernels/activation/ops_layer_scale.h"
#include "engine/kernels/op_support.h"
#include "test/kernels/tensors.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

using test::leaf;

constexpr std::int64_t kSamples = 6, kChannels = 5;

struct Found {
  at::Tensor y, dx, dresidual;
};

/// By the operator, or by drop_path of what is scaled.
Found found_by(bool plain, at::Tensor x, at::Tensor residual, Parameter& scale,
               const ops::DropMask& mask, const at::Tensor& dy) {
  x = leaf(x);
  residual = leaf(residual);
  at::Tensor y;
  if (plain) {
    const at::Tensor branch = x * scale.value;
    y = mask.share > 0 ? ops::drop_path(branch, kSamples, mask, residual) : branch + residual;
  } else {
    y = ops::layer_scale(x, scale, mask, residual);
  }
  y.backward(dy);
  return {y.detach(), x.grad(), residual.grad()};
}

TEST_CASE("layer scale adds the scaled branch, but for samples that skip it", "[kernels]") {
  test::Random random(5);
  const at::Tensor x = random({kSamples, 3, 2, kChannels}), residual = random(x.sizes()),
                   dy = random(x.sizes());
  Parameter scale = random.parameter({kChannels}, at::kFloat);
  const double share = GENERATE(0.0, 0.5);
  const ops::DropMask mask = {.share = share, .seed = at::full({}, 7, at::kLong), .place = 3};
  const Found expected = found_by(true, x, residual, scale, mask, dy);
  scale.gradient.fill_(2);
  const Found found = found_by(false, x, residual, scale, mask, dy);
  CHECK(found.y.allclose(expected.y, 1e-6, 1e-6));
  CHECK(found.dx.allclose(expected.dx, 1e-6, 1e-6));
  CHECK(found.dresidual.equal(dy));
  // d/dscale by what the branch has changed in each element.
  const at::Tensor slope = (expected.y - residual) / scale.value;
  CHECK(scale.gradient.allclose((dy * slope).sum(at::IntArrayRef({0, 1, 2})) + 2, 1e-4, 1e-4));
  if (share > 0) {
    int skipped = 0;
    for (std::int64_t i = 0; i < kSamples; ++i) skipped += found.y[i].equal(residual[i]) ? 1 : 0;
    CHECK((skipped > 0 && skipped < kSamples));
  }
}

TEST_CASE("a frozen layer scale keeps nothing and gets no gradient", "[kernels]") {
  test::Random random(6);
  const at::Tensor x = random({kSamples, kChannels}), dy = random({kSamples, kChannels});
  Parameter scale = random.parameter({kChannels}, at::kFloat);
  scale.trainable = false;
  scale.gradient = at::Tensor();
  const Found found = found_by(false, x, x, scale, {}, dy);
  CHECK(found.dx.allclose(dy * scale.value));
}

TEST_CASE("the scale's gradient is there where nothing before it is trained", "[kernels]") {
  test::Random random(7);
  const at::Tensor x = random({kSamples, kChannels}), dy = random({kSamples, kChannels});
  Parameter scale = random.parameter({kChannels}, at::kFloat);
  scale.gradient.zero_();
  ops::layer_scale(x, scale, {}, x).backward(dy);
  CHECK(scale.gradient.allclose((dy * x).sum(0), 1e-5, 1e-6));
}

TEST_CASE("shapes that do not fit a layer scale are refused", "[kernels]") {
  test::Random random(8);
  Parameter scale = random.parameter({kChannels}, at::kFloat);
  const at::Tensor x = random({kSamples, kChannels + 1});
  CHECK_THROWS_AS(ops::layer_scale(x, scale, {}, x), Error);
}

}  // namespace
}  // namespace dstrain
