#include "engine/kernels/image/augment.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/upsample_bilinear2d.h>

#include <cmath>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/philox.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

struct Images {
  at::Tensor pixels, samples;
};

Images make_images(std::int64_t batch, std::int64_t height, std::int64_t width,
                   std::int64_t channels) {
  Images images{at::empty({batch, height, width, channels}, at::kByte),
                at::empty({batch}, at::kLong)};
  auto* pixels = images.pixels.mutable_data_ptr<std::uint8_t>();
  for (std::int64_t i = 0; i < images.pixels.numel(); ++i) {
    pixels[i] = static_cast<std::uint8_t>(Philox::at(1, 2, static_cast<std::uint64_t>(i)).word[0]);
  }
  for (std::int64_t i = 0; i < batch; ++i)
    images.samples.mutable_data_ptr<std::int64_t>()[i] = 100 + i;
  return images;
}

/// Output in [0, 1] without normalisation, so that values can be compared with pixels.
AugmentOptions plain_options(int size) {
  AugmentOptions options;
  options.image_size = size;
  for (int c = 0; c < 4; ++c) {
    options.mean[c] = 0;
    options.stddev[c] = 1;
  }
  return options;
}

std::vector<float> run(const Images& images, const AugmentOptions& options) {
  auto out = at::empty(
      {images.pixels.size(0), images.pixels.size(3), options.image_size, options.image_size},
      at::kFloat);
  augment(images.pixels, images.samples, options, out);
  const auto* values = out.const_data_ptr<float>();
  return {values, values + out.numel()};
}

std::uint8_t pixel(const Images& images, std::int64_t item, std::int64_t y, std::int64_t x,
                   std::int64_t c) {
  const auto& p = images.pixels;
  if (y < 0 || x < 0 || y >= p.size(1) || x >= p.size(2)) return 0;
  return p.const_data_ptr<std::uint8_t>()[((item * p.size(1) + y) * p.size(2) + x) * p.size(3) + c];
}

float value(const std::vector<float>& out, std::int64_t channels, std::int64_t size,
            std::int64_t item, std::int64_t c, std::int64_t y, std::int64_t x) {
  return out[static_cast<std::size_t>(((item * channels + c) * size + y) * size + x)];
}

/// Whether item equals the stored image shifted by (top, left) and perhaps mirrored, zero outside.
bool is_window(const Images& images, const std::vector<float>& out, std::int64_t size,
               std::int64_t item, std::int64_t top, std::int64_t left, bool flip) {
  const std::int64_t channels = images.pixels.size(3);
  for (std::int64_t c = 0; c < channels; ++c) {
    for (std::int64_t y = 0; y < size; ++y) {
      for (std::int64_t x = 0; x < size; ++x) {
        const std::int64_t from = flip ? size - 1 - x : x;
        const float expected =
            static_cast<float>(pixel(images, item, top + y, left + from, c)) * (1.0f / 255.0f);
        if (value(out, channels, size, item, c, y, x) != expected) return false;
      }
    }
  }
  return true;
}

TEST_CASE("an image of the output's size passes unchanged, channels first", "[data][augment]") {
  const std::int64_t channels = GENERATE(1, 3);
  const Images images = make_images(3, 8, 8, channels);
  const auto out = run(images, plain_options(8));
  for (int item = 0; item < 3; ++item) REQUIRE(is_window(images, out, 8, item, 0, 0, false));
}

TEST_CASE("a larger image is cut in the middle", "[data][augment]") {
  const Images images = make_images(2, 16, 12, 3);
  const auto out = run(images, plain_options(8));
  for (int item = 0; item < 2; ++item) REQUIRE(is_window(images, out, 8, item, 4, 2, false));
}

TEST_CASE("mean and deviation are taken per channel", "[data][augment]") {
  const Images images = make_images(1, 4, 4, 3);
  auto options = plain_options(4);
  const auto raw = run(images, options);
  const AugmentOptions imagenet;
  std::copy_n(imagenet.mean, 4, options.mean);
  std::copy_n(imagenet.stddev, 4, options.stddev);
  const auto normal = run(images, options);
  for (std::size_t i = 0; i < raw.size(); ++i) {
    const std::size_t c = i / 16;
    // Values are below 3 and two products are rounded once each.
    REQUIRE(std::abs(normal[i] - (raw[i] - imagenet.mean[c]) / imagenet.stddev[c]) <
            4 * 3 * 0x1p-24f);
  }
}

TEST_CASE("random crops are windows of the padded image, and all of them come up",
          "[data][augment]") {
  const Images images = make_images(400, 8, 8, 1);
  auto options = plain_options(8);
  options.random_crop = true;
  options.crop_padding = 1;
  options.horizontal_flip = true;
  const auto out = run(images, options);
  std::vector<int> seen(18);
  for (std::int64_t item = 0; item < 400; ++item) {
    int matches = 0;
    for (std::size_t window = 0; window < 18; ++window) {
      const auto w = static_cast<std::int64_t>(window);
      if (!is_window(images, out, 8, item, w / 6 - 1, w / 2 % 3 - 1, w % 2 == 1)) continue;
      ++matches;
      ++seen[window];
    }
    REQUIRE(matches == 1);
  }
  for (const int count : seen) REQUIRE(count > 0);  // (17/18)^400 * 18 = 2e-9 that one is missing
}

TEST_CASE("a random crop of a larger image stays inside it without padding", "[data][augment]") {
  const Images images = make_images(50, 10, 9, 3);
  auto options = plain_options(8);
  options.random_crop = true;
  const auto out = run(images, options);
  for (std::int64_t item = 0; item < 50; ++item) {
    bool found = false;
    for (int top = 0; top <= 2; ++top) {
      for (int left = 0; left <= 1; ++left)
        found = found || is_window(images, out, 8, item, top, left, false);
    }
    REQUIRE(found);
  }
}

TEST_CASE("resizing is bilinear as in at::upsample_bilinear2d", "[data][augment]") {
  const int height = GENERATE(5, 16, 32);
  const int width = GENERATE(7, 16);
  const int size = GENERATE(20, 48);
  const Images images = make_images(2, height, width, 3);
  const auto out = run(images, plain_options(size));
  auto input = at::empty({2, 3, height, width}, at::kFloat);
  auto* to = input.mutable_data_ptr<float>();
  for (int item = 0; item < 2; ++item) {
    for (int c = 0; c < 3; ++c) {
      for (int y = 0; y < height; ++y) {
        for (int x = 0; x < width; ++x)
          *to++ = static_cast<float>(pixel(images, item, y, x, c)) / 255.0f;
      }
    }
  }
  const auto expected = at::upsample_bilinear2d(input, {size, size}, false);
  const auto* values = expected.const_data_ptr<float>();
  // Where both sides are at least `size` we cut instead; these shapes never are.
  for (std::size_t i = 0; i < out.size(); ++i) {
    // Positions below 64 are rounded to 64 * 2^-24, and a pixel step is at most 1.
    REQUIRE(std::abs(out[i] - values[i]) < 4 * 64 * 0x1p-24f);
  }
}

TEST_CASE("what a sample becomes does not depend on its batch, only on seed and epoch",
          "[data][augment]") {
  const Images images = make_images(6, 12, 12, 3);
  auto options = plain_options(16);
  options.random_crop = options.horizontal_flip = true;
  options.crop_padding = 3;
  options.seed = 4;
  options.epoch = 2;
  const auto whole = run(images, options);
  for (std::int64_t item = 0; item < 6; ++item) {
    const Images one{images.pixels.slice(0, item, item + 1).contiguous(),
                     images.samples.slice(0, item, item + 1).contiguous()};
    const auto alone = run(one, options);
    REQUIRE(std::equal(alone.begin(), alone.end(), whole.begin() + item * std::ssize(alone)));
  }
  options.epoch = 3;
  REQUIRE(run(images, options) != whole);
  options.epoch = 2;
  options.seed = 5;
  REQUIRE(run(images, options) != whole);
}

TEST_CASE("half-precision outputs are the rounded fp32 ones", "[data][augment]") {
  const Images images = make_images(2, 8, 8, 3);
  AugmentOptions options;
  options.image_size = 12;
  const auto exact = run(images, options);
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    auto out = at::empty({2, 3, 12, 12}, type);
    augment(images.pixels, images.samples, options, out);
    const auto expected = at::empty({2, 3, 12, 12}, at::kFloat);
    std::copy(exact.begin(), exact.end(), expected.mutable_data_ptr<float>());
    REQUIRE(out.equal(expected.to(type)));
  }
}

TEST_CASE("fillers become zeros", "[data][augment]") {
  const Images images = make_images(2, 8, 8, 3);
  images.samples.mutable_data_ptr<std::int64_t>()[1] = -1;
  AugmentOptions options;
  options.image_size = 8;
  const auto out = run(images, options);
  for (std::size_t i = 192; i < 384; ++i) REQUIRE(out[i] == 0.0f);
  REQUIRE(out[0] != 0.0f);
}

TEST_CASE("a wrong output shape is our own fault", "[data][augment]") {
  const Images images = make_images(1, 8, 8, 3);
  auto out = at::empty({1, 3, 9, 8}, at::kFloat);
  REQUIRE_THROWS_AS(augment(images.pixels, images.samples, plain_options(8), out), Error);
}

}  // namespace
}  // namespace dstrain
