#include "engine/kernels/image/augment.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <vector>

#include "engine/base/philox.h"
#include "engine/kernels/image/mix.h"
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

TEST_CASE("erasing and mixing on the GPU give what the CPU gives", "[gpu][augment]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const bool last = GENERATE(false, true);
  const bool noise = GENERATE(false, true);
  const int frames = GENERATE(1, 3);
  const int valid = GENERATE(0, 5, 6);
  CAPTURE(last, noise, frames, valid);
  const auto list = [](std::vector<int> values) {
    return at::tensor(at::ArrayRef<int>(values)).view({-1, 4}).contiguous();
  };
  const at::Tensor erased =
      list({3, 4, 20, 9, 0, 0, 0, 0, 0, 0, 33, 33, 5, 5, 1, 1, 9, 0, 8, 8, 1, 1, 9, 9});
  const at::Tensor cut =
      list({0, 0, 0, 0, 4, 6, 11, 3, 0, 0, 0, 0, 0, 0, 33, 33, 0, 0, 0, 0, 2, 2, 30, 31});
  const std::vector<float> shares = {0.3f, 1, 0.9f, 1, 0.01f, 1};
  const std::vector<std::int64_t> numbers = {7, 1000, 3, 5, 11, valid == 6 ? 12 : -1};
  const at::Tensor share = at::tensor(at::ArrayRef<float>(shares));
  const at::Tensor samples = at::tensor(at::ArrayRef<std::int64_t>(numbers));
  at::Tensor expected = noise_images(6 * frames, 33, 3).permute({0, 3, 1, 2}).to(type) / 64;
  expected = last ? expected.contiguous(at::MemoryFormat::ChannelsLast) : expected.contiguous();
  at::Tensor out = expected.to(at::kCUDA);
  const EraseOptions options = {.noise = noise, .seed = 5, .epoch = 2};
  const auto gpu = [](const at::Tensor& tensor) { return tensor.to(at::kCUDA); };
  const at::Tensor before = expected.clone();
  erase(expected, erased, samples, options);
  erase(out, gpu(erased), gpu(samples), options);
  // The logarithm and the cosine of both differ by a few units in the last place of 24 bits; a
  // value of 16 bits may round to its neighbour.
  const double step = type == at::kFloat ? 16 * 0x1p-24 : type == at::kHalf ? 0x1p-10 : 0x1p-7;
  const at::Tensor apart = (out.cpu().to(at::kDouble) - expected.to(at::kDouble)).abs();
  REQUIRE((apart <= expected.to(at::kDouble).abs() * step + 8 * step * (noise ? 0x1p-3 : 0))
              .all()
              .item<bool>());
  if (!noise) REQUIRE(out.cpu().equal(expected));
  const at::Tensor samples_in = at::tensor(valid).squeeze();
  at::Tensor mixed = before.clone(), mixed_out = gpu(before);
  mix(mixed, share, cut, samples_in);
  mix(mixed_out, gpu(share), gpu(cut), gpu(samples_in));
  REQUIRE(mixed_out.cpu().equal(mixed));
}

}  // namespace
}  // namespace dstrain
