#include "engine/data/images/image_decode.h"

#include <fmt/format.h>
#include <png.h>

#include <algorithm>
#include <memory>

#include "engine/base/error.h"
#include "engine/data/images/jpeg_decode.h"
#include "engine/data/images/webp_decode.h"

namespace dstrain {
namespace {

ImagePart decode_png(std::string_view bytes, const DecodeRequest& request,
                     const std::string& name) {
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  const std::unique_ptr<png_image, void (*)(png_image*)> cleanup(&png, png_image_free);
  if (png_image_begin_read_from_memory(&png, bytes.data(), bytes.size()) == 0) {
    fail_damaged_image(name, "PNG", bytes.size(), png.message);
  }
  check_image_size(name, png.width, png.height);
  std::unique_lock<std::mutex> alone;
  if (request.large != nullptr && std::int64_t{png.width} * png.height > kLargeImagePixels)
    alone = std::unique_lock(*request.large);
  png.flags |= PNG_IMAGE_FLAG_16BIT_sRGB;
  // With alpha, because reading into RGB would blend with a background; other readers drop it too.
  png.format = PNG_FORMAT_RGBA;
  std::vector<std::uint8_t> rgba(PNG_IMAGE_SIZE(png));
  if (png_image_finish_read(&png, nullptr, rgba.data(), 0, nullptr) == 0) {
    fail_damaged_image(name, "PNG", bytes.size(), png.message);
  }
  return cut_part(rgba, static_cast<int>(png.width), static_cast<int>(png.height), 4, request);
}

}  // namespace

ImagePart cut_part(std::span<const std::uint8_t> pixels, int width, int height, int channels,
                   const DecodeRequest& request) {
  const ImageWindow window =
      request.window == nullptr ? ImageWindow{0, 0, width, height} : request.window(width, height);
  ImagePart part{.image = {window.width, window.height, {}},
                 .width = static_cast<double>(window.width),
                 .height = static_cast<double>(window.height)};
  part.image.pixels.resize(static_cast<std::size_t>(window.width) *
                           static_cast<std::size_t>(window.height) * 3);
  std::uint8_t* to = part.image.pixels.data();
  for (int y = window.top; y < window.top + window.height; ++y) {
    const std::uint8_t* from = pixels.data() + (std::int64_t{y} * width + window.left) * channels;
    if (channels == 3) {
      to = std::copy_n(from, std::ptrdiff_t{window.width} * 3, to);
      continue;
    }
    for (int x = 0; x < window.width; ++x, from += channels, to += 3) std::copy_n(from, 3, to);
  }
  return part;
}

ImagePart decode_part(std::string_view bytes, const DecodeRequest& request,
                      const std::string& name) {
  constexpr std::string_view kJpegStart = "\xff\xd8\xff";
  constexpr std::string_view kPngStart = "\x89PNG\r\n\x1a\n";
  if (bytes.starts_with(kJpegStart)) return decode_jpeg(bytes, request, name);
  if (bytes.starts_with(kPngStart)) return decode_png(bytes, request, name);
  if (is_webp(bytes)) return decode_webp(bytes, request, name);
  constexpr const char* kHint =
      "replace the file, or take it out of the data set; data.bad_record: skip leaves it out";
  if (bytes.empty())
    throw Error(ErrorKind::data, fmt::format("{}: the file is empty", name), kHint);
  std::string start;
  for (const char byte : bytes.substr(0, 4)) {
    start += fmt::format(" {:02x}", static_cast<unsigned char>(byte));
  }
  throw Error(ErrorKind::data,
              fmt::format("{}: neither JPEG, PNG nor WebP ({} bytes, starting with{})", name,
                          bytes.size(), start),
              kHint);
}

RgbImage decode_image(std::string_view bytes, int min_side, const std::string& name) {
  return decode_part(bytes, {.min_side = min_side}, name).image;
}

}  // namespace dstrain
