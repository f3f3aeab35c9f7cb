#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dstrain {

struct RgbImage {
  int width = 0;
  int height = 0;
  std::vector<std::uint8_t> pixels = {};  ///< [height, width, 3]
};

/// Largest image that is decoded: a few hundred bytes may claim any size.
inline constexpr std::int64_t kMaxImagePixels = std::int64_t{64} << 20;
/// A larger one waits for DecodeRequest::large.
inline constexpr std::int64_t kLargeImagePixels = std::int64_t{4} << 20;

inline constexpr int kFullSize = std::numeric_limits<int>::max();

/// A rectangle of an image, in its pixels.
struct ImageWindow {
  int left = 0, top = 0, width = 0, height = 0;
  bool operator==(const ImageWindow&) const = default;
};

/// What is needed of an image.
struct DecodeRequest {
  /// The part that is needed of an image of this size, inside it; null: all of it.
  std::function<ImageWindow(int width, int height)> window = nullptr;
  /// A JPEG is decoded at half, a quarter or an eighth of its size where the shorter side of what
  /// is needed is still this; kFullSize: never.
  int min_side = kFullSize;
  /// Held while an image of more than kLargeImagePixels is decoded, so that several threads need
  /// the memory of one of them; null: no limit.
  std::mutex* large = nullptr;
};

/// The part of an image that was asked for, and what is around it.
struct ImagePart {
  RgbImage image = {};
  /// Place and size of the part in `image`; fractions where the image was decoded smaller.
  double left = 0, top = 0, width = 0, height = 0;
};

/// Decodes JPEG (baseline and progressive), PNG (8 and 16 bits) or WebP (no animations), told apart
/// by content and not by name. Grey becomes RGB, transparency is dropped, CMYK is converted without
/// a colour profile; EXIF orientation is not applied. Of a JPEG only the rows up to the end of the
/// part and the blocks of its columns are computed, with the same bits as in the whole image; what
/// is damaged behind them goes unnoticed. Error{data} names `name` for anything damaged, cut off or
/// too large.
[[nodiscard]] ImagePart decode_part(std::string_view bytes, const DecodeRequest& request,
                                    const std::string& name);
/// The part of pixels [height, width, channels], of 3 or 4 channels of which the fourth is dropped.
[[nodiscard]] ImagePart cut_part(std::span<const std::uint8_t> pixels, int width, int height,
                                 int channels, const DecodeRequest& request);
/// All of it.
[[nodiscard]] RgbImage decode_image(std::string_view bytes, int min_side, const std::string& name);

}  // namespace dstrain
