#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/philox.h"
#include "engine/data/images/image_choices.h"
#include "engine/data/images/image_decode.h"
#include "engine/data/images/image_resize.h"
#include "engine/data/images/jpeg_decode.h"
#include "test/data/write_image.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

/// Noise, so that a wrong row or column cannot go unnoticed.
RgbImage make_noise(int width, int height) {
  RgbImage image = test::make_gradient(width, height);
  for (std::size_t i = 0; i < image.pixels.size(); ++i)
    image.pixels[i] =
        static_cast<std::uint8_t>((image.pixels[i] + Philox::at(3, 4, i).word[0] % 120) % 256);
  return image;
}

std::vector<std::uint8_t> cut(const RgbImage& image, int left, int top, int width, int height) {
  std::vector<std::uint8_t> pixels;
  for (int y = top; y < top + height; ++y) {
    const auto from = image.pixels.begin() + (std::ptrdiff_t{y} * image.width + left) * 3;
    pixels.insert(pixels.end(), from, from + std::ptrdiff_t{width} * 3);
  }
  return pixels;
}

TEST_CASE("a part of a JPEG has the bits of the whole image", "[data]") {
  using test::JpegForm;
  const JpegForm form =
      GENERATE(JpegForm{1, 1, false}, JpegForm{2, 1, false}, JpegForm{2, 2, false},
               JpegForm{1, 2, false}, JpegForm{2, 2, true}, JpegForm{4, 1, false});
  CAPTURE(form.horizontal, form.vertical, form.progressive);
  const int width = 173, height = 131;
  const std::string bytes = test::encode_jpeg(make_noise(width, height), form);
  for (const int divisor : {1, 2, 4}) {
    // With the shorter side of the window as the least one, nothing is made smaller.
    const auto min = [&](const ImageWindow& w) {
      const int shorter = std::min(w.width, w.height);
      return divisor == 1 ? kFullSize : (shorter + divisor - 1) / divisor;
    };
    const RgbImage whole = decode_image(
        bytes, divisor == 1 ? kFullSize : (std::min(width, height) + divisor - 1) / divisor, "a");
    for (std::uint64_t i = 0; i < 60; ++i) {
      const Philox random = Philox::at(9, static_cast<std::uint64_t>(divisor), i);
      ImageWindow window{0, 0, 16 + static_cast<int>(random.below(0, width - 15)),
                         16 + static_cast<int>(random.below(1, height - 15))};
      window.width = std::min(window.width, width);
      window.height = std::min(window.height, height);
      window.left =
          static_cast<int>(random.below(2, static_cast<unsigned>(width - window.width + 1)));
      window.top =
          static_cast<int>(random.below(3, static_cast<unsigned>(height - window.height + 1)));
      const ImagePart part = decode_part(
          bytes, {.window = [&](int, int) { return window; }, .min_side = min(window)}, "a");
      const int left = window.left / divisor, top = window.top / divisor;
      CAPTURE(divisor, window.left, window.top, window.width, window.height, part.image.width);
      REQUIRE(part.left * divisor == window.left - left * divisor);
      REQUIRE(part.width * divisor == window.width);
      REQUIRE(part.left + part.width <= part.image.width);
      REQUIRE(part.image.pixels == cut(whole, left, top, part.image.width, part.image.height));
    }
  }
}

TEST_CASE("a window is decoded smaller only where it stays as large as the model's image",
          "[data]") {
  const std::string bytes = test::encode_jpeg(test::make_gradient(800, 640));
  const auto sides = [&](int side, int min) {
    const ImagePart part = decode_part(bytes,
                                       {.window =
                                            [&](int, int) {
                                              return ImageWindow{64, 32, side, side};
                                            },
                                        .min_side = min},
                                       "a");
    return part.image.width;
  };
  CHECK(sides(512, 224) == 256);
  CHECK(sides(512, 257) == 512);
  CHECK(sides(400, 224) == 400);
  CHECK(sides(512, 64) == 64);
  CHECK(sides(512, kFullSize) == 512);
}

TEST_CASE("only whole baseline JPEG files in YCbCr are for the units of a GPU", "[data]") {
  using test::JpegForm;
  const RgbImage image = test::make_gradient(90, 70);
  const auto taken = [](const std::string& bytes) { return unit_jpeg(bytes).has_value(); };
  for (const JpegForm form :
       {JpegForm{1, 1, false}, JpegForm{2, 1, false}, JpegForm{2, 2, false}}) {
    const std::string bytes = test::encode_jpeg(image, form);
    const std::optional<JpegSize> size = unit_jpeg(bytes);
    REQUIRE(size);
    CHECK(size->width == 90);
    CHECK(size->height == 70);
    CHECK(taken(bytes + "stray"));
    CHECK(!taken(test::half(bytes)));
    CHECK(!taken(bytes.substr(0, bytes.size() - 2)));
  }
  CHECK(!taken(test::encode_jpeg(image, {1, 2, false})));
  CHECK(!taken(test::encode_jpeg(image, {4, 1, false})));
  CHECK(!taken(test::encode_jpeg(image, {2, 2, true})));
  CHECK(!taken(test::encode_grey_jpeg(image)));
  CHECK(!taken(test::encode_cmyk_jpeg(image)));
  CHECK(!taken(test::encode_png(image)));
  CHECK(!taken(""));
  CHECK(!taken("\xff\xd8\xff\xd9"));
  CHECK(!taken(test::encode_jpeg(test::make_gradient(65500, 80))));  // too many pixels
  CHECK(!taken(test::encode_jpeg(test::make_gradient(16385, 64))));
  CHECK(taken(test::encode_jpeg(test::make_gradient(16384, 64))));
  CHECK(!taken(test::encode_jpeg(test::make_gradient(200, 63))));
}

TEST_CASE("an image of one channel is resized as each channel of three", "[data]") {
  const RgbImage image = make_noise(40, 30);
  std::vector<std::uint8_t> grey;
  for (std::size_t i = 1; i < image.pixels.size(); i += 3) grey.push_back(image.pixels[i]);
  const AxisResize columns = {.start = 1.5, .extent = 30, .resized = 17, .count = 17};
  const AxisResize rows = {.start = 0, .extent = 30, .resized = 41, .first = 3, .count = 20};
  std::vector<std::uint8_t> colours(17 * 20 * 3), one(17 * 20);
  resize_image({image.pixels, 40, 30, 3}, {columns, rows}, Interpolation::bicubic, colours);
  resize_image({grey, 40, 30, 1}, {columns, rows}, Interpolation::bicubic, one);
  for (std::size_t i = 0; i < one.size(); ++i) REQUIRE(one[i] == colours[3 * i + 1]);
}

ImageChoices choices_of(std::vector<Augmentation> augment, int side = 32, std::int64_t seed = 1) {
  DataConfig data;
  data.augment = std::move(augment);
  return {data, side, seed};
}

TEST_CASE("random windows lie in the image, keep area and shape, and follow seed, epoch and sample",
          "[data][augment]") {
  using enum Augmentation;
  const ImageChoices choices = choices_of({random_resized_crop});
  const ImageChoices other = choices_of({random_resized_crop}, 32, 2);
  int same_epoch = 0, same_seed = 0;
  double smallest = 1, largest = 0, mean = 0;
  for (int sample = 0; sample < 2000; ++sample) {
    const ImageWindow w = choices.window(3, sample, 300, 200);
    REQUIRE(w == choices.window(3, sample, 300, 200));
    REQUIRE((w.left >= 0 && w.top >= 0 && w.width > 0 && w.height > 0));
    REQUIRE((w.left + w.width <= 300 && w.top + w.height <= 200));
    const double area = w.width * w.height / 60000.0, ratio = double(w.width) / w.height;
    // Both sides are rounded to whole pixels; the smallest are 60 pixels.
    REQUIRE((area > 0.08 * 0.98 && ratio > 0.75 * 0.98 && ratio < 4.0 / 3 * 1.02));
    smallest = std::min(smallest, area);
    largest = std::max(largest, area);
    mean += area / 2000;
    same_epoch += w == choices.window(4, sample, 300, 200) ? 1 : 0;
    same_seed += w == other.window(3, sample, 300, 200) ? 1 : 0;
  }
  CHECK((smallest < 0.09 && largest > 0.8));
  CHECK((mean > 0.35 && mean < 0.54));  // areas near 1 seldom fit
  CHECK(same_epoch + same_seed < 4);
}

TEST_CASE("where no random window fits, the largest one in the middle is cut", "[data][augment]") {
  const ImageChoices choices = choices_of({Augmentation::random_resized_crop});
  CHECK(choices.window(0, 0, 1, 1) == ImageWindow{0, 0, 1, 1});
  CHECK(choices.window(0, 0, 1000, 1) == ImageWindow{499, 0, 1, 1});
  DataConfig data;
  data.augment = {Augmentation::random_resized_crop};
  data.crop_scale = {1, 1};
  data.crop_ratio = {2, 2};
  CHECK(ImageChoices(data, 8, 0).window(0, 0, 100, 100) == ImageWindow{0, 25, 100, 50});
}

TEST_CASE("erased rectangles have their share of the area and of the samples", "[data][augment]") {
  const ImageChoices choices = choices_of({Augmentation::random_erasing}, 64);
  int erased = 0;
  for (int sample = 0; sample < 4000; ++sample) {
    const ImageWindow w = choices.erased(1, sample);
    if (w.width == 0) continue;
    ++erased;
    REQUIRE((w.left >= 0 && w.top >= 0 && w.left + w.width <= 64 && w.top + w.height <= 64));
    const double area = w.width * w.height / 4096.0;
    REQUIRE((area > 0.02 * 0.85 && area < 1.0 / 3 * 1.05));
  }
  // 1000 expected, standard deviation 27.
  CHECK(std::abs(erased - 1000) < 5 * 27);
}

TEST_CASE("shares of mixup are beta distributed, rectangles of cutmix have the rest of the area",
          "[data][augment]") {
  using enum Augmentation;
  const double alpha = GENERATE(0.2, 1.0, 3.0);
  DataConfig data;
  data.augment = {mixup};
  data.mixup_alpha = data.cutmix_alpha = alpha;
  const ImageChoices up(data, 32, 5);
  data.augment = {cutmix};
  const ImageChoices cut(data, 32, 5);
  data.augment = {mixup, cutmix};
  const ImageChoices both(data, 32, 5);
  const int count = 6000;
  double mean = 0, square = 0;
  int cuts = 0;
  for (int sample = 0; sample < count; ++sample) {
    const auto mix = up.mix(2, sample);
    REQUIRE((mix.share >= 0 && mix.share <= 1 && mix.window.width == 0));
    REQUIRE(mix.label_share == mix.share);
    const double share = static_cast<double>(mix.share);
    mean += share / count;
    square += share * share / count;
    const auto c = cut.mix(2, sample);
    REQUIRE(c.share == 1);
    REQUIRE(c.label_share == static_cast<float>(1 - c.window.width * c.window.height / 1024.0));
    cuts += both.mix(2, sample).window.width > 0 || both.mix(2, sample).share == 1 ? 1 : 0;
  }
  const double variance = 1 / (4 * (2 * alpha + 1));
  CHECK(std::abs(mean - 0.5) < 5 * std::sqrt(variance / count));
  CHECK(std::abs(square - mean * mean - variance) < 0.05 * variance + 0.01);
  CHECK(std::abs(cuts - count / 2) < 5 * std::sqrt(count) / 2);
}

}  // namespace
}  // namespace dstrain
