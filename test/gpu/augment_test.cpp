#include "engine/kernels/image/augment.h"

#include <ATen/ops/empty.h>

#include "engine/base/philox.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

at::Tensor noise_images(std::int64_t batch, std::int64_t side, std::int64_t channels) {
  auto pixels = at::empty({batch, side, side, channels}, at::kByte);
  auto* to = pixels.mutable_data_ptr<std::uint8_t>();
  for (std::int64_t i = 0; i < pixels.numel(); ++i) {
    to[i] = static_cast<std::uint8_t>(Philox::at(1, 2, static_cast<std::uint64_t>(i)).word[0]);
  }
  return pixels;
}

TEST_CASE("augmentation on the GPU gives the bits of the CPU", "[gpu][augment]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const std::int64_t channels = GENERATE(1, 3);
  const int side = GENERATE(8, 32, 73);
  const int size = GENERATE(8, 40, 64);
  const bool random = GENERATE(false, true);
  CAPTURE(channels, side, size, random);
  const auto pixels = noise_images(9, side, channels);
  auto samples = at::empty({9}, at::kLong);
  for (std::int64_t i = 0; i < 9; ++i)
    samples.mutable_data_ptr<std::int64_t>()[i] = i == 4 ? -1 : 1000 * i;
  AugmentOptions options;
  options.image_size = size;
  options.random_crop = options.horizontal_flip = random;
  options.crop_padding = 4;
  options.seed = 11;
  options.epoch = 3;
  auto expected = at::empty({9, channels, size, size}, type);
  augment(pixels, samples, options, expected);
  auto out = at::empty({9, channels, size, size}, at::TensorOptions(type).device(at::kCUDA));
  augment(pixels.to(at::kCUDA), samples.to(at::kCUDA), options, out);
  REQUIRE(out.cpu().equal(expected));
}

}  // namespace
}  // namespace dstrain
