#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/data/formats.h"
#include "engine/data/images/digits/embedded.h"

namespace dstrain::formats {
namespace {

constexpr int kDigitsSide = 8;
constexpr int kPixels = kDigitsSide * kDigitsSide;
constexpr int kClasses = 10;
constexpr int kLargestValue = 16;
constexpr std::size_t kDigitsTestEvery = 5;
constexpr std::int64_t kDigitsTrain = 1437;  ///< of those in the binary
constexpr std::size_t kMaxFile = std::size_t{16} << 20;

struct Digit {
  std::array<std::uint8_t, kPixels> pixels;
  int label;
};

bool is_gzip(std::string_view bytes) { return bytes.starts_with("\x1f\x8b"); }

std::string gunzip(std::string_view compressed, const std::string& name) {
  z_stream stream{};
  constexpr int kGzip = 16 + MAX_WBITS;
  DSTRAIN_CHECK(inflateInit2(&stream, kGzip) == Z_OK, "zlib does not start");
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(compressed.data()));
  stream.avail_in = static_cast<uInt>(compressed.size());
  std::string text;
  int status = Z_OK;
  while (status == Z_OK && text.size() <= kMaxFile) {
    std::array<char, 65536> part;
    stream.next_out = reinterpret_cast<Bytef*>(part.data());
    stream.avail_out = static_cast<uInt>(part.size());
    status = inflate(&stream, Z_NO_FLUSH);
    text.append(part.data(), part.size() - stream.avail_out);
  }
  const auto at = stream.total_in;
  inflateEnd(&stream);
  if (status != Z_STREAM_END) {
    throw Error(ErrorKind::data,
                fmt::format("{}: gzip data is damaged, ends early or is too large at byte {} of {}",
                            name, at, compressed.size()));
  }
  return text;
}

/// Whole number in [0, largest] at the front of `line`, taken off with the comma behind it.
int take_number(std::string_view& line, int largest, const std::string& name, std::size_t record,
                int field) {
  int value = -1;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), value);
  const bool delimited = end == line.data() + line.size() || *end == ',';
  if (error != std::errc() || value < 0 || value > largest || !delimited) {
    throw Error(
        ErrorKind::data,
        fmt::format("{}: record {}, field {}: '{}' is not a whole number from 0 to {}", name,
                    record, field, line.substr(0, line.find(',')).substr(0, 20), largest),
        "each line holds 64 pixel values 0..16 and the digit 0..9, separated by commas");
  }
  line.remove_prefix(static_cast<std::size_t>(end - line.data()));
  if (!line.empty()) line.remove_prefix(1);
  return value;
}

Digit parse_record(std::string_view line, const std::string& name, std::size_t record) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  const auto fields = std::count(line.begin(), line.end(), ',') + 1;
  if (fields != kPixels + 1) {
    throw Error(ErrorKind::data,
                fmt::format("{}: record {} has {} fields, a digit has {}", name, record, fields,
                            kPixels + 1),
                "each line holds 64 pixel values 0..16 and the digit 0..9, separated by commas");
  }
  Digit digit;
  for (int i = 0; i < kPixels; ++i) {
    const int value = take_number(line, kLargestValue, name, record, i);
    digit.pixels[static_cast<std::size_t>(i)] =
        static_cast<std::uint8_t>((value * 255 + kLargestValue / 2) / kLargestValue);
  }
  digit.label = take_number(line, kClasses - 1, name, record, kPixels);
  return digit;
}

class Digits final : public ImageDataset {
 public:
  Digits(std::string_view text, const std::string& name, Split split) {
    std::size_t record = 0;
    while (!text.empty()) {
      const auto line = text.substr(0, text.find('\n'));
      text.remove_prefix(std::min(text.size(), line.size() + 1));
      const bool test = record % kDigitsTestEvery == 0;
      auto digit = parse_record(line, name, record++);
      if (test == (split == Split::test)) digits_.push_back(digit);
    }
    if (digits_.empty()) {
      throw Error(ErrorKind::data, fmt::format("{}: too few records to split: {}", name, record));
    }
  }

  [[nodiscard]] std::int64_t size() const override {
    return static_cast<std::int64_t>(digits_.size());
  }
  [[nodiscard]] int classes() const override { return kClasses; }
  [[nodiscard]] std::vector<std::string> class_names() const override {
    std::vector<std::string> names;
    for (int digit = 0; digit < kClasses; ++digit) names.push_back(std::to_string(digit));
    return names;
  }
  [[nodiscard]] ImageShape shape() const override { return {kDigitsSide, kDigitsSide, 1}; }
  [[nodiscard]] int read(std::int64_t index, std::span<std::uint8_t> pixels) const override {
    DSTRAIN_CHECK(pixels.size() == kPixels, "wrong pixel buffer");
    const Digit& digit = digits_.at(static_cast<std::size_t>(index));
    std::ranges::copy(digit.pixels, pixels.begin());
    return digit.label;
  }

 private:
  std::vector<Digit> digits_;
};

std::unique_ptr<ImageDataset> open_digits(const DataConfig& data, Split split, int, std::int64_t,
                                          ProgressSink*) {
  const std::filesystem::path path = data.path;
  const std::string name = path.empty() ? "digits.csv.gz" : path.string();
  std::string content;
  if (path.empty()) {
    content.assign(kDigitsFile.begin(), kDigitsFile.end());
  } else {
    content = read_file(path, kMaxFile);
  }
  if (is_gzip(content)) content = gunzip(content, name);
  return std::make_unique<Digits>(content, name, split);
}

}  // namespace

const ImageFormat kDigits = {
    .name = DatasetName::digits,
    .open = open_digits,
    .shape =
        [](const DataConfig&, int) {
          return ImageShape{kDigitsSide, kDigitsSide, 1};
        },
    .facts =
        [](const DataConfig& data) {
          return DatasetFacts{.classes = kClasses,
                              .train_size = data.path.empty() ? kDigitsTrain : 0};
        },
};

}  // namespace dstrain::formats
