#include <zlib.h>

#include <algorithm>
#include <ctime>
#include <random>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/data/images/image_decode.h"
#include "engine/data/images/image_resize.h"
#include "test/data/write_image.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

constexpr const char* kName = "folder/a.jpg";
constexpr int kSide = 24;

/// Decodes and resizes: sound pixels, or an error that names the file.
bool is_sound(const std::string& bytes) {
  try {
    const RgbImage image = decode_image(bytes, kSide, kName);
    if (image.width < 1 || image.height < 1 ||
        image.pixels.size() !=
            static_cast<std::size_t>(image.width) * static_cast<std::size_t>(image.height) * 3) {
      return false;
    }
    std::vector<std::uint8_t> pixels(kSide * kSide * 3);
    for (const Fit fit : {Fit::crop, Fit::stretch}) {
      for (const Interpolation filter : {Interpolation::bilinear, Interpolation::lanczos})
        resize_to_square(image, {.fit = fit, .side = kSide, .input = kSide, .filter = filter},
                         pixels);
    }
    return true;
  } catch (const Error& error) {
    return error.kind() == ErrorKind::data && std::string_view(error.what()).starts_with(kName);
  }
}

std::string big_endian(std::uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift);
  return bytes;
}

std::string png_chunk(const std::string& type, const std::string& content) {
  const std::string body = type + content;
  const auto sum =
      ::crc32(0, reinterpret_cast<const Bytef*>(body.data()), static_cast<uInt>(body.size()));
  return big_endian(static_cast<std::uint32_t>(content.size())) + body +
         big_endian(static_cast<std::uint32_t>(sum));
}

std::string deflated(const std::string& content) {
  std::string packed(::compressBound(content.size()), '\0');
  uLongf size = packed.size();
  REQUIRE(::compress(reinterpret_cast<Bytef*>(packed.data()), &size,
                     reinterpret_cast<const Bytef*>(content.data()), content.size()) == Z_OK);
  packed.resize(size);
  return packed;
}

std::string sound_png() { return test::encode_png(test::make_gradient(40, 30)); }
std::string sound_jpeg() { return test::encode_jpeg(test::make_gradient(40, 30)); }

/// A sound PNG with a chunk after its header.
std::string png_with(const std::string& chunk) {
  std::string png = sound_png();
  return png.insert(33, chunk);
}

/// A PNG of a claimed size whose pixels are `content`, packed.
std::string png_of(std::uint32_t width, std::uint32_t height, char depth, char colour,
                   const std::string& content) {
  return sound_png().substr(0, 8) +
         png_chunk("IHDR",
                   big_endian(width) + big_endian(height) + depth + colour + std::string(3, '\0')) +
         png_chunk("IDAT", deflated(content)) + png_chunk("IEND", "");
}

/// A sound JPEG whose frame header claims other sizes.
std::string jpeg_of(const std::string& height_and_width) {
  std::string jpeg = sound_jpeg();
  return jpeg.replace(jpeg.find("\xff\xc0") + 5, 4, height_and_width);
}

std::string repeat(const std::string& text, std::size_t times) {
  std::string all;
  for (std::size_t i = 0; i < times; ++i) all += text;
  return all;
}

std::vector<std::string> hostile_images() {
  const std::string zeros(std::size_t{32} << 20, '\0');
  const std::string jpeg = sound_jpeg();
  const std::size_t scan = jpeg.find("\xff\xda");
  return {
      "",
      "\xff\xd8\xff",
      "\x89PNG\r\n\x1a\n",
      std::string("RIFF\x04\0\0\0WEBP", 12),
      std::string(1 << 20, '\xff'),
      "\xff\xd8" + std::string(1 << 20, '\xff'),
      "\xff\xd8\xff\xd9",
      // Texts and profiles that unpack to 32 MiB.
      png_with(png_chunk("zTXt", std::string("a\0\0", 3) + deflated(zeros))),
      png_with(png_chunk("iTXt", std::string("a\0\1\0\0\0", 6) + deflated(zeros))),
      png_with(png_chunk("iCCP", std::string("a\0\0", 3) + deflated(zeros))),
      png_with(repeat(png_chunk("tEXt", "a"), 20000)),
      png_with(png_chunk("PLTE", std::string(3 * 257, 'x'))),
      png_with(png_chunk("IHDR", std::string(13, '\0'))),
      png_with("\x7f\xff\xff\xffIDAT"),
      // More and fewer pixels than the header says, and kinds that there are not.
      png_of(16, 16, 8, 2, zeros),
      png_of(16, 16, 8, 2, "x"),
      png_of(0, 16, 8, 2, ""),
      png_of(0x80000000, 16, 8, 2, ""),
      png_of(16, 16, 3, 2, "x"),
      png_of(16, 16, 8, 9, "x"),
      png_of(16, 16, 8, 3, std::string(16 * 17, '\5')),  // no palette
      png_of(60000, 60000, 1, 0, "x"),
      jpeg_of(std::string("\0\0\0\x10", 4)),
      jpeg_of("\xff\xff\xff\xff"),
      jpeg_of(std::string("\xff\xdc\0\1", 4)),
      // The same scan, and tables, again and again.
      jpeg.substr(0, jpeg.size() - 2) + repeat(jpeg.substr(scan, jpeg.size() - 2 - scan), 3000) +
          "\xff\xd9",
      jpeg.substr(0, scan) + repeat(std::string("\xff\xdd\0\4\0\1", 6), 20000) + jpeg.substr(scan),
      jpeg.substr(0, 2) + repeat("\xff\xe1\xff\xff" + std::string(65533, 'x'), 40) + jpeg.substr(2),
  };
}

}  // namespace

TEST_CASE("hostile images are refused by name or decoded, within a second of work each",
          "[data][hostile]") {
  const std::vector<std::string> images = hostile_images();
  for (std::size_t i = 0; i < images.size(); ++i) {
    CAPTURE(i);
    double took_s = 1e9;  // the best of three: a busy machine must not fail the test
    for (int attempt = 0; attempt < 3 && took_s >= 1; ++attempt) {
      const std::clock_t begin = std::clock();
      CHECK(is_sound(images[i]));
      took_s = std::min(took_s, static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
    }
    CHECK(took_s < 1);
  }
}

TEST_CASE("images with some bytes changed are refused by name or decoded", "[data][hostile]") {
  const RgbImage image = test::make_gradient(40, 30);
  const std::vector<std::string> sound = {
      test::encode_jpeg(image),      test::encode_jpeg(image, 20),
      test::encode_grey_jpeg(image), test::encode_cmyk_jpeg(image),
      test::encode_png(image),       test::encode_transparent_png(image),
      test::encode_webp(image),      test::encode_webp(image, false)};
  for (const std::string& bytes : sound) REQUIRE(is_sound(bytes));
  std::mt19937 random(20260102);
  const auto below = [&](std::size_t count) { return random() % count; };
  for (int round = 0; round < 6000; ++round) {
    std::string bytes = sound[below(sound.size())];
    for (std::size_t change = 0; change <= below(4); ++change) {
      const std::size_t at = below(bytes.size());
      switch (below(6)) {
        case 0:
          bytes.resize(std::max<std::size_t>(at, 1));
          break;
        case 1:
          bytes.insert(at, 1 + below(8), static_cast<char>(below(256)));
          break;
        case 2:
          bytes.erase(at, 1 + below(8));
          break;
        case 3:
          bytes.insert(at, bytes.substr(below(bytes.size()), below(64)));
          break;
        case 4:  // headers, where sizes stand
          bytes[below(std::min<std::size_t>(bytes.size(), 700))] = static_cast<char>(below(256));
          break;
        default:
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
      }
    }
    CAPTURE(round);
    REQUIRE(is_sound(bytes));
  }
}

}  // namespace dstrain
