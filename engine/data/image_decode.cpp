#include "engine/data/image_decode.h"

#include <fmt/format.h>
#include <png.h>
#include <turbojpeg.h>

#include <algorithm>
#include <memory>
#include <span>

#include "engine/base/error.h"

namespace dstrain {
namespace {

constexpr const char* kReplaceHint = "replace the file, or take it out of the data set";

[[noreturn]] void fail_corrupt(const std::string& name, const char* format, std::size_t bytes,
                               const char* detail) {
  throw Error(ErrorKind::data,
              fmt::format("{}: damaged or cut off {} ({} bytes): {}", name, format, bytes, detail),
              kReplaceHint);
}

void check_size(const std::string& name, std::int64_t width, std::int64_t height) {
  if (width > 0 && height > 0 && width * height <= kMaxImagePixels) return;
  throw Error(ErrorKind::data,
              fmt::format("{}: claims {} x {} pixels, the limit is {}", name, width, height,
                          kMaxImagePixels),
              kReplaceHint);
}

/// Adobe writes CMYK inverted, so each value is the light that is left: R = C * K.
std::vector<std::uint8_t> cmyk_to_rgb(std::span<const std::uint8_t> cmyk) {
  std::vector<std::uint8_t> rgb(cmyk.size() / 4 * 3);
  for (std::size_t i = 0; i < cmyk.size() / 4; ++i) {
    for (std::size_t c = 0; c < 3; ++c) {
      rgb[i * 3 + c] = static_cast<std::uint8_t>((cmyk[i * 4 + c] * cmyk[i * 4 + 3] + 127) / 255);
    }
  }
  return rgb;
}

/// Smallest of 1, 1/2, 1/4 and 1/8 whose shorter side is at least `least_side`. The decoder has
/// more scales, but its other transforms take longer than the whole image.
tjscalingfactor choose_scale(int shorter, int least_side) {
  tjscalingfactor best{1, 1};
  for (const int denominator : {2, 4, 8}) {
    const tjscalingfactor smaller{1, denominator};
    if (TJSCALED(shorter, smaller) >= least_side) best = smaller;
  }
  return best;
}

RgbImage decode_jpeg(std::string_view bytes, int least_side, const std::string& name) {
  const std::unique_ptr<void, int (*)(void*)> decoder(tjInitDecompress(), tjDestroy);
  DSTRAIN_CHECK(decoder != nullptr, "libturbojpeg does not start");
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  int width = 0, height = 0, subsampling = 0, colors = 0;
  if (tjDecompressHeader3(decoder.get(), data, bytes.size(), &width, &height, &subsampling,
                          &colors) != 0 &&
      tjGetErrorCode(decoder.get()) == TJERR_FATAL) {
    fail_corrupt(name, "JPEG", bytes.size(), tjGetErrorStr2(decoder.get()));
  }
  // A file cut off before its frame header is a sound file of nothing but tables to the decoder.
  if (width == 0) fail_corrupt(name, "JPEG", bytes.size(), "no image in it");
  check_size(name, width, height);

  const auto scale = choose_scale(std::min(width, height), least_side);
  const bool cmyk = colors == TJCS_CMYK || colors == TJCS_YCCK;
  const auto format = cmyk ? TJPF_CMYK : TJPF_RGB;
  RgbImage image{TJSCALED(width, scale), TJSCALED(height, scale), {}};
  image.pixels.resize(static_cast<std::size_t>(image.width) *
                      static_cast<std::size_t>(image.height) *
                      static_cast<std::size_t>(tjPixelSize[format]));
  if (tjDecompress2(decoder.get(), data, bytes.size(), image.pixels.data(), image.width, 0,
                    image.height, format, TJFLAG_LIMITSCANS) != 0) {
    // Bytes between segments harm nothing and are common in photo collections; any other warning
    // means lost pixels.
    const std::string_view message = tjGetErrorStr2(decoder.get());
    const bool harmless = tjGetErrorCode(decoder.get()) == TJERR_WARNING &&
                          message.find("extraneous bytes") != std::string_view::npos;
    if (!harmless) fail_corrupt(name, "JPEG", bytes.size(), message.data());
  }
  if (cmyk) image.pixels = cmyk_to_rgb(image.pixels);
  return image;
}

RgbImage decode_png(std::string_view bytes, const std::string& name) {
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  const std::unique_ptr<png_image, void (*)(png_image*)> cleanup(&png, png_image_free);
  if (png_image_begin_read_from_memory(&png, bytes.data(), bytes.size()) == 0) {
    fail_corrupt(name, "PNG", bytes.size(), png.message);
  }
  check_size(name, png.width, png.height);
  png.flags |= PNG_IMAGE_FLAG_16BIT_sRGB;
  // With alpha, because reading into RGB would blend with a background; other readers drop it too.
  png.format = PNG_FORMAT_RGBA;
  std::vector<std::uint8_t> rgba(PNG_IMAGE_SIZE(png));
  if (png_image_finish_read(&png, nullptr, rgba.data(), 0, nullptr) == 0) {
    fail_corrupt(name, "PNG", bytes.size(), png.message);
  }
  RgbImage image{static_cast<int>(png.width), static_cast<int>(png.height), {}};
  image.pixels.resize(rgba.size() / 4 * 3);
  for (std::size_t i = 0; i < rgba.size() / 4; ++i) {
    std::copy_n(&rgba[i * 4], 3, &image.pixels[i * 3]);
  }
  return image;
}

}  // namespace

RgbImage decode_image(std::string_view bytes, int least_side, const std::string& name) {
  if (bytes.starts_with("\xff\xd8\xff")) return decode_jpeg(bytes, least_side, name);
  if (bytes.starts_with("\x89PNG\r\n\x1a\n")) return decode_png(bytes, name);
  if (bytes.empty())
    throw Error(ErrorKind::data, fmt::format("{}: the file is empty", name), kReplaceHint);
  std::string start;
  for (const char byte : bytes.substr(0, 4)) {
    start += fmt::format(" {:02x}", static_cast<unsigned char>(byte));
  }
  throw Error(ErrorKind::data,
              fmt::format("{}: neither JPEG nor PNG ({} bytes, starting with{})", name,
                          bytes.size(), start),
              kReplaceHint);
}

}  // namespace dstrain
