#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace dstrain {

struct RgbImage {
  int width = 0;
  int height = 0;
  std::vector<std::uint8_t> pixels;  ///< [height, width, 3]
};

/// Largest image that is decoded: a few hundred bytes may claim any size.
inline constexpr std::int64_t kMaxImagePixels = std::int64_t{64} << 20;

inline constexpr int kFullSize = std::numeric_limits<int>::max();

/// Decodes JPEG or PNG, told apart by content and not by name. Grey becomes RGB, transparency is
/// dropped, CMYK is converted without a colour profile; EXIF orientation is not applied. A JPEG is
/// decoded at half, a quarter or an eighth of its size where the shorter side is still
/// `least_side`; kFullSize decodes all of it. Error{data} names `name` for anything damaged, cut
/// off or too large.
[[nodiscard]] RgbImage decode_image(std::string_view bytes, int least_side,
                                    const std::string& name);

}  // namespace dstrain
