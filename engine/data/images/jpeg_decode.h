#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "engine/data/images/image_decode.h"

namespace dstrain {

/// decode_part() of a JPEG.
[[nodiscard]] ImagePart decode_jpeg(std::string_view bytes, const DecodeRequest& request,
                                    const std::string& name);

struct JpegSize {
  int width = 0, height = 0;
};
/// Size of a JPEG that a GPU's units decode: baseline, one scan of 8 bits, YCbCr with colours at
/// full or half the resolution across or both ways, its end marker there, sides of 64 to 16,384 and
/// up to kLargeImagePixels. Nothing for other bytes, whatever they are.
[[nodiscard]] std::optional<JpegSize> unit_jpeg(std::string_view bytes);

/// Error{data} for an image of no pixels, or of more than kMaxImagePixels.
void check_image_size(const std::string& name, std::int64_t width, std::int64_t height);
[[noreturn]] void fail_damaged_image(const std::string& name, const char* format, std::size_t bytes,
                                     const std::string& detail);

/// The image as a JPEG with colours at half the resolution, `quality` from 1 to 100.
[[nodiscard]] std::string encode_jpeg(const RgbImage& image, int quality);

}  // namespace dstrain
