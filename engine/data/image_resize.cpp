#include "engine/data/image_resize.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

#include "engine/base/error.h"

namespace dstrain {
namespace {

constexpr std::size_t kChannels = 3;
constexpr int kWeightBits = 22;  ///< of a weight's fraction: 8 bits of pixel and 2 of overshoot fit

double triangle(double x) { return std::max(0.0, 1.0 - std::abs(x)); }

/// Keys 1981, "Cubic convolution interpolation", eq. 15 (a = -1/2).
double cubic(double x) {
  constexpr double a = -0.5;
  x = std::abs(x);
  if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
  if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * a;
  return 0.0;
}

double sinc(double x) {
  if (x == 0.0) return 1.0;
  x *= std::numbers::pi;
  return std::sin(x) / x;
}

double lanczos(double x) { return -3.0 <= x && x < 3.0 ? sinc(x) * sinc(x / 3) : 0.0; }

struct Filter {
  double (*weight)(double x);
  double support;
};

Filter filter_of(Interpolation interpolation) {
  switch (interpolation) {
    case Interpolation::bilinear:
      return {triangle, 1};
    case Interpolation::bicubic:
      return {cubic, 2};
    case Interpolation::lanczos:
      return {lanczos, 3};
  }
  return {triangle, 1};
}

/// What one output position reads: source positions from `first` on, with weights that add up to
/// 2^kWeightBits.
struct Taps {
  int first;
  std::vector<std::int32_t> weights;
};

/// Taps of `side` outputs from `offset` on, of an axis of `length` that is resized to `resized`.
std::vector<Taps> make_taps(int length, std::int64_t resized, std::int64_t offset, int side,
                            const Filter& filter) {
  const double scale = static_cast<double>(length) / static_cast<double>(resized);
  const double widening = std::max(scale, 1.0);
  const double support = filter.support * widening;
  std::vector<Taps> all;
  std::vector<double> weights;
  for (int i = 0; i < side; ++i) {
    const double center = (static_cast<double>(offset + i) + 0.5) * scale;
    const int first = std::max(0, static_cast<int>(center - support + 0.5));
    const int end = std::min(length, static_cast<int>(center + support + 0.5));
    weights.clear();
    double sum = 0;
    for (int j = first; j < end; ++j) {
      weights.push_back(filter.weight((j - center + 0.5) * (1.0 / widening)));
      sum += weights.back();
    }
    Taps taps{first, {}};
    for (const double weight : weights) {
      const double share = sum == 0 ? weight : weight / sum;
      taps.weights.push_back(
          static_cast<std::int32_t>(share * (1 << kWeightBits) + (share < 0 ? -0.5 : 0.5)));
    }
    all.push_back(std::move(taps));
  }
  return all;
}

std::uint8_t round_to_byte(std::int32_t sum) {
  return static_cast<std::uint8_t>(std::clamp(sum >> kWeightBits, 0, 255));
}

constexpr std::int32_t kHalf = 1 << (kWeightBits - 1);

/// Where the first and the last source position is that the taps read, and the end behind it.
struct Range {
  std::size_t begin = SIZE_MAX, end = 0;
};
Range range_of(const std::vector<Taps>& all) {
  Range range;
  for (const Taps& taps : all) {
    const auto first = static_cast<std::size_t>(taps.first);
    range.begin = std::min(range.begin, first);
    range.end = std::max(range.end, first + taps.weights.size());
  }
  return range;
}

/// Pixels [height, width, 3] that begin at column `left` and row `top` of an image.
struct Part {
  std::span<const std::uint8_t> pixels;
  std::size_t width;
  std::size_t left = 0, top = 0;

  [[nodiscard]] const std::uint8_t* at(std::size_t column, std::size_t row) const {
    return &pixels[((row - top) * width + column - left) * kChannels];
  }
};

/// The rows in `range`, with the columns that `taps` say.
std::vector<std::uint8_t> resize_columns(const Part& part, const std::vector<Taps>& taps,
                                         const Range& range) {
  std::vector<std::uint8_t> resized((range.end - range.begin) * taps.size() * kChannels);
  std::uint8_t* to = resized.data();
  for (std::size_t y = range.begin; y < range.end; ++y) {
    for (const Taps& column : taps) {
      const std::uint8_t* from = part.at(static_cast<std::size_t>(column.first), y);
      std::int32_t sum[kChannels] = {kHalf, kHalf, kHalf};
      for (const std::int32_t weight : column.weights) {
        for (std::int32_t& channel : sum) channel += weight * *from++;
      }
      for (const std::int32_t channel : sum) *to++ = round_to_byte(channel);
    }
  }
  return resized;
}

/// The columns in `range`, with the rows that `taps` say.
std::vector<std::uint8_t> resize_rows(const Part& part, const std::vector<Taps>& taps,
                                      const Range& range) {
  const std::size_t values = (range.end - range.begin) * kChannels;
  std::vector<std::uint8_t> resized(taps.size() * values);
  std::vector<std::int32_t> line(values);
  std::uint8_t* to = resized.data();
  for (const Taps& row : taps) {
    std::ranges::fill(line, kHalf);
    for (std::size_t i = 0; i < row.weights.size(); ++i) {
      const std::uint8_t* from = part.at(range.begin, static_cast<std::size_t>(row.first) + i);
      for (std::int32_t& value : line) value += row.weights[i] * *from++;
    }
    to = std::ranges::transform(line, to, round_to_byte).out;
  }
  return resized;
}

/// Sizes of the whole resized image, as transformers has them, and the place of the square in it.
struct Geometry {
  std::int64_t width, height, left, top;
};

Geometry make_geometry(const RgbImage& image, const SquareResize& how) {
  if (how.fit == Fit::stretch) return {how.side, how.side, 0, 0};
  const bool wide = image.width > image.height;
  const int shorter = std::min(image.width, image.height);
  const int longer = std::max(image.width, image.height);
  const std::int64_t resized = std::int64_t{how.side} * longer / shorter;
  // So that the middle of the square is the middle of the image where halves are rounded down.
  const std::int64_t offset = std::clamp<std::int64_t>(
      (resized - how.input) / 2 - (how.side - how.input) / 2, 0, resized - how.side);
  return wide ? Geometry{resized, how.side, offset, 0} : Geometry{how.side, resized, 0, offset};
}

}  // namespace

void resize_to_square(const RgbImage& image, const SquareResize& how,
                      std::span<std::uint8_t> pixels) {
  const auto side = static_cast<std::size_t>(how.side);
  DSTRAIN_CHECK(pixels.size() == side * side * kChannels, "wrong pixel buffer");
  const Filter filter = filter_of(how.filter);
  const Geometry whole = make_geometry(image, how);
  const auto columns = make_taps(image.width, whole.width, whole.left, how.side, filter);
  const auto rows = make_taps(image.height, whole.height, whole.top, how.side, filter);

  // In the order of Pillow 13, which rounds in between: columns first, unless the height is reduced
  // by much more than the width.
  const bool rows_first =
      image.height > whole.height && image.height - whole.height > 2 * (image.width - whole.width);
  const Part source{image.pixels, static_cast<std::size_t>(image.width)};
  const Range all{0, side};
  std::vector<std::uint8_t> resized;
  if (rows_first) {
    const Range needed = range_of(columns);
    resized = resize_rows(source, rows, needed);
    resized = resize_columns({resized, needed.end - needed.begin, needed.begin}, columns, all);
  } else {
    const Range needed = range_of(rows);
    resized = resize_columns(source, columns, needed);
    resized = resize_rows({resized, side, 0, needed.begin}, rows, all);
  }
  std::ranges::copy(resized, pixels.begin());
}

}  // namespace dstrain
