#include <algorithm>
#include <cstdlib>
#include <vector>

#include "engine/data/images/image_decode.h"
#include "engine/data/images/image_resize.h"
#include "test/data/write_image.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

using test::make_gradient;

int largest_difference(const std::vector<std::uint8_t>& a, const std::vector<std::uint8_t>& b) {
  REQUIRE(a.size() == b.size());
  int largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    largest = std::max(largest, std::abs(int{a[i]} - int{b[i]}));
  return largest;
}

std::vector<std::uint8_t> center_square(const RgbImage& image, int side) {
  std::vector<std::uint8_t> pixels(static_cast<std::size_t>(side) * static_cast<std::size_t>(side) *
                                   3);
  resize_to_square(image, {.fit = Fit::crop, .side = side, .input = side}, pixels);
  return pixels;
}

TEST_CASE("PNG gives the pixels back exactly, with and without transparency", "[data]") {
  const RgbImage image = make_gradient(37, 23);
  for (const auto& bytes : {test::encode_png(image), test::encode_transparent_png(image)}) {
    const RgbImage decoded = decode_image(bytes, 8, "a.png");
    REQUIRE(decoded.width == 37);
    REQUIRE(decoded.height == 23);
    REQUIRE(decoded.pixels == image.pixels);
  }
}

TEST_CASE("JPEG gives the picture back within its quantisation", "[data]") {
  const RgbImage image = make_gradient(64, 48);
  const RgbImage decoded = decode_image(test::encode_jpeg(image), 48, "a.jpg");
  REQUIRE(decoded.width == 64);
  REQUIRE(decoded.height == 48);
  // Quality 95 quantises the low frequencies of a smooth picture in steps of 2 or less.
  REQUIRE(largest_difference(decoded.pixels, image.pixels) <= 6);
}

TEST_CASE("grey and CMYK JPEG become RGB", "[data]") {
  const RgbImage image = make_gradient(40, 40);
  const RgbImage cmyk = decode_image(test::encode_cmyk_jpeg(image), 40, "a.jpg");
  REQUIRE(largest_difference(cmyk.pixels, image.pixels) <= 6);
  const RgbImage grey = decode_image(test::encode_grey_jpeg(image), 40, "a.jpg");
  for (std::size_t i = 0; i < grey.pixels.size(); i += 3) {
    const double luma =
        0.299 * image.pixels[i] + 0.587 * image.pixels[i + 1] + 0.114 * image.pixels[i + 2];
    REQUIRE(std::abs(grey.pixels[i] - luma) <= 4);
    REQUIRE(grey.pixels[i] == grey.pixels[i + 1]);
    REQUIRE(grey.pixels[i] == grey.pixels[i + 2]);
  }
}

TEST_CASE("a large JPEG is decoded no larger than needed", "[data]") {
  const std::string bytes = test::encode_jpeg(make_gradient(800, 640));
  const RgbImage eighth = decode_image(bytes, 80, "a.jpg");
  REQUIRE(eighth.width == 100);
  REQUIRE(eighth.height == 80);
  const RgbImage quarter = decode_image(bytes, 81, "a.jpg");
  REQUIRE(quarter.height == 160);
  // 3/8 of it would do, but takes longer than all of it.
  REQUIRE(decode_image(bytes, 200, "a.jpg").height == 320);
  REQUIRE(decode_image(bytes, 321, "a.jpg").height == 640);
  REQUIRE(decode_image(bytes, 5000, "a.jpg").height == 640);
  REQUIRE(decode_image(bytes, kFullSize, "a.jpg").height == 640);
}

TEST_CASE("an image of the right size passes the resize unchanged", "[data]") {
  const RgbImage image = make_gradient(32, 32);
  REQUIRE(center_square(image, 32) == image.pixels);
}

TEST_CASE("the centre square is cut from the longer side", "[data]") {
  RgbImage image{6, 2, {}};
  for (int i = 0; i < 12; ++i)
    image.pixels.insert(image.pixels.end(), 3, static_cast<std::uint8_t>(i));
  const auto pixels = center_square(image, 2);
  REQUIRE(pixels == std::vector<std::uint8_t>{2, 2, 2, 3, 3, 3, 8, 8, 8, 9, 9, 9});
}

TEST_CASE("stretching takes the whole image", "[data]") {
  RgbImage image{4, 2, {}};
  for (int i = 0; i < 8; ++i)
    image.pixels.insert(image.pixels.end(), 3, static_cast<std::uint8_t>(10 * i));
  std::vector<std::uint8_t> pixels(12);
  resize_to_square(image, {.fit = Fit::stretch, .side = 2, .input = 2}, pixels);
  // Triangles over four columns: (0.75 a + 0.75 b + 0.25 c) / 1.75.
  REQUIRE(pixels == std::vector<std::uint8_t>{7, 7, 7, 23, 23, 23, 47, 47, 47, 63, 63, 63});
}

TEST_CASE("the middle of the square is the middle of the image", "[data]") {
  // 9 columns, of which a square of 6 is kept and its middle 3 are the input: columns 3, 4 and 5.
  RgbImage image{9, 6, {}};
  for (int i = 0; i < 54; ++i)
    image.pixels.insert(image.pixels.end(), 3, static_cast<std::uint8_t>(i % 9));
  std::vector<std::uint8_t> pixels(108);
  resize_to_square(image, {.fit = Fit::crop, .side = 6, .input = 3}, pixels);
  REQUIRE(pixels[3] == 3);
}

TEST_CASE("every filter keeps a flat image flat, and sharp ones overshoot at an edge", "[data]") {
  using enum Interpolation;
  const Interpolation filter = GENERATE(bilinear, bicubic, lanczos);
  const int side = GENERATE(7, 30, 90);
  CAPTURE(static_cast<int>(filter), side);
  RgbImage image{31, 17, std::vector<std::uint8_t>(31 * 17 * 3, 77)};
  std::vector<std::uint8_t> pixels(static_cast<std::size_t>(side) * static_cast<std::size_t>(side) *
                                   3);
  const SquareResize how{.fit = Fit::stretch, .side = side, .input = side, .filter = filter};
  resize_to_square(image, how, pixels);
  REQUIRE(std::ranges::count(pixels, 77) == static_cast<std::ptrdiff_t>(pixels.size()));
  for (std::size_t i = 0; i < image.pixels.size(); ++i)
    image.pixels[i] = i / 3 % 31 < 15 ? 50 : 200;
  resize_to_square(image, how, pixels);
  const bool overshoots = *std::ranges::max_element(pixels) > 200;
  REQUIRE(overshoots == (filter != bilinear));
}

TEST_CASE("reducing averages, so that fine stripes become grey and not stripes", "[data]") {
  RgbImage image{64, 64, {}};
  for (int i = 0; i < 64 * 64; ++i) {
    image.pixels.insert(image.pixels.end(), 3, i % 2 == 0 ? std::uint8_t{0} : std::uint8_t{200});
  }
  const auto pixels = center_square(image, 8);
  for (std::size_t x = 1; x < 7; ++x) REQUIRE(std::abs(pixels[(8 * 4 + x) * 3] - 100) <= 1);
}

TEST_CASE("resizing a gradient gives a gradient", "[data]") {
  const int from = GENERATE(24, 100, 333);
  const int side = GENERATE(16, 32, 64);
  const auto pixels = center_square(make_gradient(from, from), side);
  const double scale = static_cast<double>(from) / side;
  const double support = std::max(scale, 1.0);
  for (int x = 0; x < side; ++x) {
    const double center = (x + 0.5) * scale - 0.5;
    if (center < support || center > from - 1 - support) continue;  // taps cut off at the border
    const double expected = center * 255 / (from - 1);
    // Half a step for each rounding, and one because the gradient itself is truncated.
    REQUIRE(std::abs(pixels[static_cast<std::size_t>(side / 2 * side + x) * 3] - expected) <= 1.6);
  }
}

}  // namespace
}  // namespace dstrain
