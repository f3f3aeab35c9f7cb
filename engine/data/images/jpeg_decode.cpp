#include "engine/data/images/jpeg_decode.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <span>

#include "engine/base/error.h"
#include "engine/data/images/jpeg_error.h"

namespace dstrain {
namespace {

constexpr const char* kReplaceHint =
    "replace the file, or take it out of the data set; data.bad_record: skip leaves it out";

/// Files that claim more scans take minutes.
constexpr int kMaxScans = 500;
/// Sides of images for a GPU's units: smaller ones have not been tried, larger ones they do not
/// take.
constexpr int kMinUnitSide = 64, kMaxUnitSide = 16384;
/// Pixels beside a part that colours at half the resolution are interpolated from.
constexpr int kMargin = 4;

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

/// Largest of 1, 2, 4 and 8 by which a side of `shorter` may be divided and still be `min_side`.
/// The decoder has more scales, but its other transforms take longer than the whole image.
unsigned choose_divisor(int shorter, int min_side) {
  unsigned best = 1;
  for (const unsigned divisor : {2u, 4u, 8u}) {
    const int scaled = (shorter + static_cast<int>(divisor) - 1) / static_cast<int>(divisor);
    if (scaled >= min_side) best = divisor;
  }
  return best;
}

/// One file; not movable, as libjpeg holds addresses.
class JpegReader {
 public:
  JpegReader(std::string_view bytes, const std::string& name) : bytes_(bytes), name_(name) {
    jpeg_.err = errors_.start();
    require(errors_.run([&] { jpeg_create_decompress(&jpeg_); }));
    progress_.progress_monitor = [](j_common_ptr jpeg) {
      if (reinterpret_cast<j_decompress_ptr>(jpeg)->input_scan_number <= kMaxScans) return;
      JpegErrors& errors = JpegErrors::of(jpeg);
      std::strcpy(errors.text, "more than 500 scans");
      std::longjmp(errors.jump, 1);
    };
    jpeg_.progress = &progress_;
  }
  ~JpegReader() { jpeg_destroy_decompress(&jpeg_); }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  JpegSize read_header() {
    int status = JPEG_SUSPENDED;
    require(errors_.run([&] {
      jpeg_mem_src(&jpeg_, reinterpret_cast<const unsigned char*>(bytes_.data()),
                   static_cast<unsigned long>(bytes_.size()));
      status = jpeg_read_header(&jpeg_, FALSE);
    }));
    // A file cut off before its frame header is a sound file of nothing but tables to the decoder.
    if (status != JPEG_HEADER_OK || jpeg_.image_width == 0) fail("no image in it");
    check_image_size(name_, jpeg_.image_width, jpeg_.image_height);
    return {static_cast<int>(jpeg_.image_width), static_cast<int>(jpeg_.image_height)};
  }

  /// Condition of unit_jpeg(), once the header is read.
  [[nodiscard]] bool fits_units() {
    if (jpeg_.progressive_mode || jpeg_.arith_code || jpeg_has_multiple_scans(&jpeg_) ||
        jpeg_.data_precision != 8 || jpeg_.num_components != 3 ||
        jpeg_.jpeg_color_space != JCS_YCbCr)
      return false;
    const std::span components(jpeg_.comp_info, 3);
    const auto factors = [&](std::size_t i, int across, int down) {
      return components[i].h_samp_factor == across && components[i].v_samp_factor == down;
    };
    return factors(1, 1, 1) && factors(2, 1, 1) &&
           (factors(0, 1, 1) || factors(0, 2, 1) || factors(0, 2, 2));
  }

  /// The part of the scaled image that holds `window`; all of it: to its end, so that a file that
  /// is cut off is found.
  ImagePart read(const ImageWindow& window, unsigned divisor) {
    const bool cmyk = jpeg_.jpeg_color_space == JCS_CMYK || jpeg_.jpeg_color_space == JCS_YCCK;
    jpeg_.out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
    jpeg_.scale_num = 1;
    jpeg_.scale_denom = divisor;
    require(errors_.run([&] { jpeg_start_decompress(&jpeg_); }));
    const JpegSize whole = {static_cast<int>(jpeg_.output_width),
                            static_cast<int>(jpeg_.output_height)};
    const auto d = static_cast<double>(divisor);
    const int left = window.left / static_cast<int>(divisor);
    const int top = window.top / static_cast<int>(divisor);
    const int right =
        std::min(whole.width, static_cast<int>(std::ceil((window.left + window.width) / d)));
    const int bottom =
        std::min(whole.height, static_cast<int>(std::ceil((window.top + window.height) / d)));
    const int channels = cmyk ? 4 : 3;
    ImagePart part{.image = {right - left, bottom - top, {}},
                   .left = window.left / d - left,
                   .top = window.top / d - top,
                   .width = window.width / d,
                   .height = window.height / d};
    part.image.pixels.resize(static_cast<std::size_t>(part.image.width) *
                             static_cast<std::size_t>(part.image.height) *
                             static_cast<std::size_t>(channels));
    copy_rows(whole, {left, top, part.image.width, part.image.height}, channels,
              part.image.pixels.data());
    if (errors_.lost_pixels) fail(errors_.text);
    if (cmyk) part.image.pixels = cmyk_to_rgb(part.image.pixels);
    return part;
  }

 private:
  void require(bool done) {
    if (!done) fail(errors_.text);
  }
  [[noreturn]] void fail(const char* detail) {
    fail_damaged_image(name_, "JPEG", bytes_.size(), detail);
  }

  void copy_rows(const JpegSize& whole, const ImageWindow& part, int channels,
                 std::uint8_t* pixels) {
    JDIMENSION first = 0, width = jpeg_.output_width;
    const int skipped = std::max(0, part.top - kMargin);
    const bool columns = part.width < whole.width, rows = part.height < whole.height;
    require(errors_.run([&] {
      if (columns) {
        const int begin = std::max(0, part.left - kMargin);
        const int end = std::min(whole.width, part.left + part.width + kMargin);
        first = static_cast<JDIMENSION>(begin);
        width = static_cast<JDIMENSION>(end - begin);
        jpeg_crop_scanline(&jpeg_, &first, &width);
      }
      if (skipped > 0) jpeg_skip_scanlines(&jpeg_, static_cast<JDIMENSION>(skipped));
    }));
    const std::size_t row_bytes =
        static_cast<std::size_t>(part.width) * static_cast<std::size_t>(channels);
    const std::size_t offset =
        (static_cast<std::size_t>(part.left) - first) * static_cast<std::size_t>(channels);
    std::vector<std::uint8_t> line(static_cast<std::size_t>(width) *
                                   static_cast<std::size_t>(channels));
    const int bottom = part.top + part.height;
    require(errors_.run([&] {
      while (static_cast<int>(jpeg_.output_scanline) < bottom) {
        const int y = static_cast<int>(jpeg_.output_scanline) - part.top;
        const bool direct = y >= 0 && !columns;
        std::uint8_t* to = pixels + static_cast<std::ptrdiff_t>(row_bytes) * std::max(0, y);
        JSAMPROW row = direct ? to : line.data();
        jpeg_read_scanlines(&jpeg_, &row, 1);
        if (y >= 0 && !direct) std::memcpy(to, line.data() + offset, row_bytes);
      }
      if (columns || rows) {
        jpeg_abort_decompress(&jpeg_);
      } else {
        jpeg_finish_decompress(&jpeg_);
      }
    }));
  }

  std::string_view bytes_;
  const std::string& name_;
  JpegErrors errors_{};
  jpeg_progress_mgr progress_{};
  jpeg_decompress_struct jpeg_{};
};

}  // namespace

void check_image_size(const std::string& name, std::int64_t width, std::int64_t height) {
  if (width > 0 && height > 0 && width * height <= kMaxImagePixels) return;
  throw Error(ErrorKind::data,
              fmt::format("{}: claims {} x {} pixels, the limit is {}", name, width, height,
                          kMaxImagePixels),
              kReplaceHint);
}

void fail_damaged_image(const std::string& name, const char* format, std::size_t bytes,
                        const std::string& detail) {
  throw Error(ErrorKind::data,
              fmt::format("{}: damaged or cut off {} ({} bytes): {}", name, format, bytes, detail),
              kReplaceHint);
}

std::optional<JpegSize> unit_jpeg(std::string_view bytes) {
  // What is cut off ends in no marker; units would fill it up without a word.
  constexpr std::size_t kEndBytes = 1024;
  const std::string_view end = bytes.substr(bytes.size() - std::min(bytes.size(), kEndBytes));
  if (!bytes.starts_with("\xff\xd8\xff") || end.rfind("\xff\xd9") == std::string_view::npos)
    return {};
  try {
    const std::string unnamed;
    JpegReader reader(bytes, unnamed);
    const JpegSize size = reader.read_header();
    const auto [shorter, longer] = std::minmax(size.width, size.height);
    const bool fits = shorter >= kMinUnitSide && longer <= kMaxUnitSide &&
                      std::int64_t{size.width} * size.height <= kLargeImagePixels &&
                      reader.fits_units();
    return fits ? std::optional(size) : std::nullopt;
  } catch (const Error&) {
    return {};  // the CPU's decoder says what is wrong
  }
}

ImagePart decode_jpeg(std::string_view bytes, const DecodeRequest& request,
                      const std::string& name) {
  JpegReader decoder(bytes, name);
  const JpegSize size = decoder.read_header();
  const ImageWindow window = request.window == nullptr ? ImageWindow{0, 0, size.width, size.height}
                                                       : request.window(size.width, size.height);
  DSTRAIN_CHECK(window.left >= 0 && window.top >= 0 && window.width > 0 && window.height > 0 &&
                    window.left + window.width <= size.width &&
                    window.top + window.height <= size.height,
                "the part that is needed lies in the image");
  std::unique_lock<std::mutex> alone;
  if (request.large != nullptr && std::int64_t{size.width} * size.height > kLargeImagePixels)
    alone = std::unique_lock(*request.large);
  return decoder.read(window,
                      choose_divisor(std::min(window.width, window.height), request.min_side));
}

std::string encode_jpeg(const RgbImage& image, int quality) {
  JpegErrors errors{};
  jpeg_compress_struct jpeg{};
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  jpeg.err = errors.start();
  const bool done = errors.run([&] {
    jpeg_create_compress(&jpeg);
    jpeg_mem_dest(&jpeg, &bytes, &size);
    jpeg.image_width = static_cast<JDIMENSION>(image.width);
    jpeg.image_height = static_cast<JDIMENSION>(image.height);
    jpeg.input_components = 3;
    jpeg.in_color_space = JCS_RGB;
    jpeg_set_defaults(&jpeg);
    jpeg_set_quality(&jpeg, quality, TRUE);
    jpeg_start_compress(&jpeg, TRUE);
    const std::ptrdiff_t row_bytes = std::ptrdiff_t{image.width} * 3;
    while (jpeg.next_scanline < jpeg.image_height) {
      auto* row = const_cast<JSAMPROW>(image.pixels.data() +
                                       static_cast<std::ptrdiff_t>(jpeg.next_scanline) * row_bytes);
      jpeg_write_scanlines(&jpeg, &row, 1);
    }
    jpeg_finish_compress(&jpeg);
  });
  jpeg_destroy_compress(&jpeg);
  const std::unique_ptr<unsigned char, void (*)(void*)> owner(bytes, std::free);
  DSTRAIN_CHECK(done, std::string("libjpeg does not write: ") + errors.text);
  return {reinterpret_cast<const char*>(bytes), size};
}

}  // namespace dstrain
