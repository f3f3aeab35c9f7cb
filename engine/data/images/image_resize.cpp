#include "engine/data/images/image_resize.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

#include "engine/base/error.h"
#include "engine/data/images/resize_loops.h"

namespace dstrain {
namespace {

using namespace resize;

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

/// Taps of the wanted outputs of an axis of `length`.
Taps make_taps(int length, const AxisResize& axis, const Filter& filter) {
  const double scale = axis.extent / static_cast<double>(axis.resized);
  const double widening = std::max(scale, 1.0);
  const double support = filter.support * widening;
  Taps taps;
  taps.first.reserve(static_cast<std::size_t>(axis.count));
  taps.begin.reserve(static_cast<std::size_t>(axis.count) + 1);
  std::vector<double> weights;
  for (int i = 0; i < axis.count; ++i) {
    const double center = axis.start + (static_cast<double>(axis.first + i) + 0.5) * scale;
    const int first = std::max(0, static_cast<int>(center - support + 0.5));
    const int end = std::min(length, static_cast<int>(center + support + 0.5));
    weights.clear();
    double sum = 0;
    for (int j = first; j < end; ++j) {
      weights.push_back(filter.weight((j - center + 0.5) * (1.0 / widening)));
      sum += weights.back();
    }
    taps.first.push_back(first);
    for (const double weight : weights) {
      const double share = sum == 0 ? weight : weight / sum;
      taps.weights.push_back(
          static_cast<std::int32_t>(share * (1 << kWeightBits) + (share < 0 ? -0.5 : 0.5)));
    }
    taps.begin.push_back(static_cast<int>(taps.weights.size()));
  }
  return taps;
}

/// Where the first and the last source position is that the taps read, and the end behind it.
struct Range {
  int begin, end;
  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(end - begin); }
};
Range range_of(const Taps& taps) {
  Range range{taps.first.front(), 0};
  for (std::size_t i = 0; i < taps.size(); ++i) {
    range.begin = std::min(range.begin, taps.first[i]);
    range.end = std::max(range.end, taps.first[i] + taps.count(i));
  }
  return range;
}

/// Reads from position `range.begin` on of what holds only the range.
Taps moved(Taps taps, const Range& range) {
  for (int& first : taps.first) first -= range.begin;
  return taps;
}

/// The two passes for one vector unit. Rows of images follow one another; each buffer has kSlack
/// bytes behind its last row, which rgb_columns() may read.
template <class Unit>
struct Passes {
  int channels;

  /// `rows` rows, with the columns that `taps` say.
  [[nodiscard]] std::vector<std::uint8_t> resize_columns(const std::uint8_t* from, int width,
                                                         std::size_t rows, const Taps& taps) const {
    const auto stride = static_cast<std::size_t>(width) * static_cast<std::size_t>(channels);
    const std::size_t made = taps.size() * static_cast<std::size_t>(channels);
    std::vector<std::uint8_t> resized(rows * made + kSlack);
    if (channels == 3) {
      Loops<Unit>::rgb_columns(from, width, rows, taps, resized.data());
    } else {
      for (std::size_t y = 0; y < rows; ++y)
        Loops<Unit>::columns(from + y * stride, channels, taps, resized.data() + y * made);
    }
    return resized;
  }

  /// Rows of `values` bytes that are `stride` apart, as `taps` say.
  [[nodiscard]] static std::vector<std::uint8_t> resize_rows(const std::uint8_t* from,
                                                             std::ptrdiff_t stride,
                                                             std::size_t values, const Taps& taps) {
    std::vector<std::uint8_t> resized(taps.size() * values + kSlack);
    for (std::size_t i = 0; i < taps.size(); ++i) {
      Loops<Unit>::rows(from + taps.first[i] * stride, stride, taps.of(i), taps.count(i),
                        static_cast<std::ptrdiff_t>(values), &resized[i * values]);
    }
    return resized;
  }

  /// In the order of Pillow 13, which rounds in between.
  [[nodiscard]] std::vector<std::uint8_t> run(const ImageView& image, const Taps& columns,
                                              const Taps& rows, bool rows_first) const {
    const std::ptrdiff_t stride = std::ptrdiff_t{image.width} * channels;
    if (rows_first) {
      const Range needed = range_of(columns);
      const auto resized =
          resize_rows(image.pixels.data() + std::ptrdiff_t{needed.begin} * channels, stride,
                      needed.size() * static_cast<std::size_t>(channels), rows);
      return resize_columns(resized.data(), static_cast<int>(needed.size()), rows.size(),
                            moved(columns, needed));
    }
    const Range needed = range_of(rows);
    const std::uint8_t* first = image.pixels.data() + needed.begin * stride;
    std::vector<std::uint8_t> copy;
    std::size_t whole = needed.size();
    // The bytes behind the last row are not ours.
    const std::size_t last = channels == 3 && needed.end == image.height ? 2 - whole % 2 : 0;
    if (last > 0) {
      whole -= last;
      copy.assign(first + static_cast<std::ptrdiff_t>(whole) * stride,
                  first + static_cast<std::ptrdiff_t>(whole + last) * stride);
      copy.resize(copy.size() + kSlack);
    }
    auto resized = resize_columns(first, image.width, whole, columns);
    if (last > 0) {
      const auto more = resize_columns(copy.data(), image.width, last, columns);
      resized.resize(resized.size() - kSlack);
      resized.insert(resized.end(), more.begin(), more.end());
    }
    const std::size_t values = columns.size() * static_cast<std::size_t>(channels);
    return resize_rows(resized.data(), static_cast<std::ptrdiff_t>(values), values,
                       moved(rows, needed));
  }
};

/// Size of the whole resized image, and the place of what is wanted in it.
struct Geometry {
  std::int64_t width, height, left, top;
};

/// PIL's sizes: the longer side is cut off to a whole number.
Geometry resized_size(int width, int height, const SquareResize& how) {
  if (how.fit == Fit::stretch) return {how.side, how.side, 0, 0};
  const bool wide = width > height;
  const int shorter = std::min(width, height);
  const int longer = std::max(width, height);
  const std::int64_t resized = std::int64_t{how.side} * longer / shorter;
  return wide ? Geometry{resized, how.side, 0, 0} : Geometry{how.side, resized, 0, 0};
}

/// Where the middle of `size` pixels of `length` begins.
std::int64_t middle(std::int64_t length, std::int64_t size, Fit fit) {
  const std::int64_t apart = length - size;
  // Python's round(): a half goes to the even neighbour.
  const bool up = fit == Fit::crop && apart % 4 == 3;
  return apart / 2 + (up ? 1 : 0);
}

ImageAxes axes_of(int width, int height, const Geometry& whole, int side) {
  return {.columns = {.extent = static_cast<double>(width),
                      .resized = whole.width,
                      .first = whole.left,
                      .count = side},
          .rows = {.extent = static_cast<double>(height),
                   .resized = whole.height,
                   .first = whole.top,
                   .count = side}};
}

}  // namespace

ResizePlan plan_resize(int width, int height, const ImageAxes& axes, Interpolation interpolation) {
  const Filter filter = filter_of(interpolation);
  const auto& [columns, rows] = axes;
  return {
      .columns = make_taps(width, columns, filter),
      .rows = make_taps(height, rows, filter),
      // Columns first, unless the height is reduced by much more than the width.
      .rows_first = height > rows.resized && height - rows.resized > 2 * (width - columns.resized)};
}

ImageAxes square_axes(int width, int height, const SquareResize& how) {
  Geometry whole = resized_size(width, height, how);
  const auto place = [&](std::int64_t resized) {
    return std::clamp<std::int64_t>((resized - how.input) / 2 - (how.side - how.input) / 2, 0,
                                    resized - how.side);
  };
  whole.left = place(whole.width);
  whole.top = place(whole.height);
  return axes_of(width, height, whole, how.side);
}

ImageAxes part_axes(double left, double top, double width, double height, int side) {
  return {.columns = {.start = left, .extent = width, .resized = side, .count = side},
          .rows = {.start = top, .extent = height, .resized = side, .count = side}};
}

void resize_image(const ImageView& image, const ImageAxes& axes, Interpolation interpolation,
                  std::span<std::uint8_t> pixels) {
  const auto channels = static_cast<std::size_t>(image.channels);
  DSTRAIN_CHECK(image.pixels.size() == static_cast<std::size_t>(image.width) *
                                           static_cast<std::size_t>(image.height) * channels &&
                    pixels.size() == static_cast<std::size_t>(axes.columns.count) *
                                         static_cast<std::size_t>(axes.rows.count) * channels,
                "wrong pixel buffer");
  const ResizePlan plan = plan_resize(image.width, image.height, axes, interpolation);
  const auto run = [&](const auto& passes) {
    return passes.run(image, plan.columns, plan.rows, plan.rows_first);
  };
#if defined(__x86_64__)
  static const bool avx2 = __builtin_cpu_supports("avx2") != 0;
  const auto resized =
      avx2 ? run(Passes<Avx2>{image.channels}) : run(Passes<Plain>{image.channels});
#else
  const auto resized = run(Passes<Plain>{image.channels});
#endif
  std::copy_n(resized.begin(), pixels.size(), pixels.begin());
}

void resize_to_square(const RgbImage& image, const SquareResize& how,
                      std::span<std::uint8_t> pixels) {
  resize_image({image.pixels, image.width, image.height},
               square_axes(image.width, image.height, how), how.filter, pixels);
}

void resize_to_middle(const RgbImage& image, const SquareResize& how,
                      std::span<std::uint8_t> pixels) {
  Geometry whole = resized_size(image.width, image.height, how);
  whole.left = middle(whole.width, how.input, how.fit);
  whole.top = middle(whole.height, how.input, how.fit);
  resize_image({image.pixels, image.width, image.height},
               axes_of(image.width, image.height, whole, how.input), how.filter, pixels);
}

void resize_part(const ImageView& image, const ImagePart& part, int side, Interpolation filter,
                 std::span<std::uint8_t> pixels) {
  resize_image(image, part_axes(part.left, part.top, part.width, part.height, side), filter,
               pixels);
}

}  // namespace dstrain
