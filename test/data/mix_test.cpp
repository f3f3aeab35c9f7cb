#include "engine/kernels/image/mix.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>

#include <cmath>
#include <vector>

#include "engine/base/error.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

constexpr int kSize = 8;

at::Tensor windows(const std::vector<int>& values) {
  return at::tensor(at::ArrayRef<int>(values)).view({-1, 4}).contiguous();
}
at::Tensor floats(const std::vector<float>& values) {
  return at::tensor(at::ArrayRef<float>(values));
}
at::Tensor samples(const std::vector<std::int64_t>& values) {
  return at::tensor(at::ArrayRef<std::int64_t>(values));
}
at::Tensor valid(int count) { return at::tensor(count).squeeze(); }

/// [left, top, width, height] of the images of a sample.
at::Tensor inside(const at::Tensor& images, const std::vector<int>& window) {
  return images.narrow(2, window[1], window[3]).narrow(3, window[0], window[2]);
}

TEST_CASE("each sample is mixed with the mirrored one among those that are no fillers",
          "[data][augment]") {
  const bool last = GENERATE(false, true);
  const int frames = GENERATE(1, 3);
  CAPTURE(last, frames);
  const std::vector<int> cut = {2, 1, 4, 5};
  const at::Tensor before = at::randn({6 * frames, 3, kSize, kSize});
  at::Tensor images = last ? before.contiguous(at::MemoryFormat::ChannelsLast) : before.clone();
  // Five samples and a filler; sample 1 is cut, the others are blended.
  mix(images, floats({0.25F, 1, 0.5F, 0.75F, 1, 0.1F}),
      windows({0, 0, 0, 0, 2, 1, 4, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 8}), valid(5));
  const auto of = [&](const at::Tensor& all, int sample) {
    return all.narrow(0, sample * frames, frames);
  };
  REQUIRE(
      (of(images, 0) - (of(before, 0) * 0.25 + of(before, 4) * 0.75)).abs().max().item<float>() <
      4 * 4 * 0x1p-24F);
  at::Tensor expected = of(before, 1).clone();
  inside(expected, cut).copy_(inside(of(before, 3), cut));
  REQUIRE(of(images, 1).equal(expected));
  REQUIRE(of(images, 2).equal(of(before, 2)));  // the middle one is its own mirror image
  REQUIRE(
      (of(images, 3) - (of(before, 3) * 0.75 + of(before, 1) * 0.25)).abs().max().item<float>() <
      4 * 4 * 0x1p-24F);
  REQUIRE(of(images, 4).equal(of(before, 4)));
  REQUIRE(of(images, 5).equal(of(before, 5)));
}

TEST_CASE("erasing fills the rectangle with zeros or normal noise and nothing else",
          "[data][augment]") {
  const bool noise = GENERATE(false, true);
  const at::Tensor before = at::randn({3, 3, kSize, kSize});
  at::Tensor images = before.clone();
  const std::vector<int> window = {1, 2, 5, 3};
  const at::Tensor rectangles = windows({1, 2, 5, 3, 0, 0, 0, 0, 1, 2, 5, 3});
  erase(images, rectangles, samples({40, 41, -1}), {.noise = noise, .seed = 3, .epoch = 1});
  REQUIRE(images.narrow(0, 1, 2).equal(before.narrow(0, 1, 2)));  // no rectangle, and a filler
  at::Tensor rest = images.narrow(0, 0, 1).clone();
  inside(rest, window).copy_(inside(before.narrow(0, 0, 1), window));
  REQUIRE(rest.equal(before.narrow(0, 0, 1)));
  const at::Tensor filled = inside(images.narrow(0, 0, 1), window);
  REQUIRE((filled.abs().max().item<float>() > 0) == noise);
  at::Tensor alone = before.narrow(0, 0, 1).clone();
  erase(alone, rectangles.narrow(0, 0, 1), samples({40}), {.noise = noise, .seed = 3, .epoch = 1});
  REQUIRE(alone.equal(images.narrow(0, 0, 1)));
}

TEST_CASE("the noise of erasing is normal", "[data][augment]") {
  at::Tensor images = at::randn({1, 3, 200, 200});
  erase(images, windows({0, 0, 200, 200}), samples({1}), {.noise = true});
  const double mean = images.to(at::kDouble).mean().item<double>();
  const double square = images.to(at::kDouble).pow(2).mean().item<double>();
  const double fourth = images.to(at::kDouble).pow(4).mean().item<double>();
  // 120,000 values: five standard deviations of each moment.
  CHECK(std::abs(mean) < 5 * std::sqrt(1 / 120000.0));
  CHECK(std::abs(square - 1) < 5 * std::sqrt(2 / 120000.0));
  CHECK(std::abs(fourth - 3) < 5 * std::sqrt(96 / 120000.0));
}

TEST_CASE("half-precision images are mixed in single precision", "[data][augment]") {
  const at::Tensor before = at::randn({2, 3, kSize, kSize}).to(at::kBFloat16);
  at::Tensor images = before.clone();
  mix(images, floats({0.3F, 0.9F}), windows({0, 0, 0, 0, 0, 0, 0, 0}), valid(2));
  at::Tensor exact = before.to(at::kFloat);
  mix(exact, floats({0.3F, 0.9F}), windows({0, 0, 0, 0, 0, 0, 0, 0}), valid(2));
  REQUIRE(images.equal(exact.to(at::kBFloat16)));
}

TEST_CASE("tensors that do not fit are refused", "[data][augment]") {
  at::Tensor images = at::randn({2, 3, kSize, kSize});
  CHECK_THROWS_AS(mix(images, floats({1}), windows({0, 0, 0, 0, 0, 0, 0, 0}), valid(2)), Error);
  CHECK_THROWS_AS(erase(images, windows({0, 0, 0, 0}), samples({1, 2}), {}), Error);
  at::Tensor oblong = at::randn({2, 3, kSize, 4});
  CHECK_THROWS_AS(mix(oblong, floats({1, 1}), windows({0, 0, 0, 0, 0, 0, 0, 0}), valid(2)), Error);
}

}  // namespace
}  // namespace dstrain
