#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "engine/data/images/image_decode.h"

namespace dstrain::test {

/// A picture that tells its corners apart and survives JPEG: red grows to the right, green
/// downwards, blue is constant.
RgbImage make_gradient(int width, int height);

/// The bytes of a file as the format's own library writes it.
std::string encode_jpeg(const RgbImage& image, int quality = 95);
/// Samples of brightness for each of colour, in each direction, and whether it is progressive.
struct JpegForm {
  int horizontal = 2, vertical = 2;
  bool progressive = false;
};
std::string encode_jpeg(const RgbImage& image, const JpegForm& form);
std::string encode_grey_jpeg(const RgbImage& image);
std::string encode_cmyk_jpeg(const RgbImage& image);
std::string encode_png(const RgbImage& image);
/// With a fully transparent alpha channel.
std::string encode_transparent_png(const RgbImage& image);

std::string encode_webp(const RgbImage& image, bool lossless = true);

/// A picture of 16 bits a channel; the lower byte repeats the upper one.
std::string encode_deep_png(const RgbImage& image);

/// The first half of a file, which is cut off there.
inline std::string half(const std::string& bytes) { return bytes.substr(0, bytes.size() / 2); }

/// Makes the folders above it too.
void write_file(const std::filesystem::path& path, std::string_view content);

}  // namespace dstrain::test
