#include "engine/data/images/webp_decode.h"

#include <fmt/format.h>
#include <webp/decode.h>

#include <cstdint>
#include <vector>

#include "engine/base/error.h"
#include "engine/data/images/jpeg_decode.h"

namespace dstrain {
namespace {

const char* text_of(VP8StatusCode code) {
  switch (code) {
    case VP8_STATUS_NOT_ENOUGH_DATA:
      return "the file ends early";
    case VP8_STATUS_BITSTREAM_ERROR:
      return "its data are damaged";
    case VP8_STATUS_UNSUPPORTED_FEATURE:
      return "it has a feature that libwebp does not read";
    case VP8_STATUS_OUT_OF_MEMORY:
      return "no memory is left for it";
    default:
      return "libwebp cannot read it";
  }
}

}  // namespace

bool is_webp(std::string_view bytes) {
  constexpr std::size_t kKindAt = 8;
  return bytes.starts_with("RIFF") && bytes.size() > kKindAt &&
         bytes.substr(kKindAt).starts_with("WEBP");
}

ImagePart decode_webp(std::string_view bytes, const DecodeRequest& request,
                      const std::string& name) {
  const auto* data = reinterpret_cast<const std::uint8_t*>(bytes.data());
  const auto fail = [&](VP8StatusCode code) {
    fail_damaged_image(name, "WebP", bytes.size(), text_of(code));
  };
  WebPDecoderConfig config;
  DSTRAIN_CHECK(WebPInitDecoderConfig(&config) != 0, "headers of another libwebp");
  if (const auto code = WebPGetFeatures(data, bytes.size(), &config.input); code != VP8_STATUS_OK)
    fail(code);
  if (config.input.has_animation != 0) {
    throw Error(ErrorKind::data,
                fmt::format("{}: an animated WebP; only still images are read", name),
                "take one frame of it, or take the file out of the data set");
  }
  const int width = config.input.width, height = config.input.height;
  check_image_size(name, width, height);
  std::unique_lock<std::mutex> alone;
  if (request.large != nullptr && std::int64_t{width} * height > kLargeImagePixels)
    alone = std::unique_lock(*request.large);
  // Without alpha, which is dropped, not blended.
  std::vector<std::uint8_t> rgb(static_cast<std::size_t>(width) * static_cast<std::size_t>(height) *
                                3);
  config.output.colorspace = MODE_RGB;
  config.output.is_external_memory = 1;
  config.output.u.RGBA = {.rgba = rgb.data(), .stride = width * 3, .size = rgb.size()};
  if (const auto code = WebPDecode(data, bytes.size(), &config); code != VP8_STATUS_OK) fail(code);
  return cut_part(rgb, width, height, 3, request);
}

}  // namespace dstrain
