#include "engine/data/image_resize.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/base/error.h"

namespace dstrain {
namespace {

/// What one output position reads: source positions from `first` on, with weights that add up to 1.
struct Taps {
  int first;
  std::vector<float> weights;
};

/// Taps along an axis of `length` for `side` outputs over the window that starts at `offset`,
/// `scale` sources per output.
std::vector<Taps> make_taps(int length, int offset, int side, double scale) {
  const double support = std::max(scale, 1.0);
  std::vector<Taps> all;
  for (int i = 0; i < side; ++i) {
    const double center = offset + (i + 0.5) * scale;
    const int first = std::max(0, static_cast<int>(std::floor(center - support)));
    const int end = std::min(length, static_cast<int>(std::ceil(center + support)));
    std::vector<double> weights;
    double sum = 0;
    for (int j = first; j < end; ++j) {
      weights.push_back(std::max(0.0, 1.0 - std::abs(j + 0.5 - center) / support));
      sum += weights.back();
    }
    Taps taps{first, {}};
    for (const double weight : weights) taps.weights.push_back(static_cast<float>(weight / sum));
    all.push_back(std::move(taps));
  }
  return all;
}

}  // namespace

void resize_center_square(const RgbImage& image, int side, std::span<std::uint8_t> pixels) {
  constexpr std::size_t kChannels = 3;
  const auto width = static_cast<std::size_t>(image.width);
  const auto out_width = static_cast<std::size_t>(side);
  DSTRAIN_CHECK(pixels.size() == out_width * out_width * kChannels, "wrong pixel buffer");
  const int shorter = std::min(image.width, image.height);
  const double scale = static_cast<double>(shorter) / side;
  const auto columns = make_taps(image.width, (image.width - shorter) / 2, side, scale);
  const auto rows = make_taps(image.height, (image.height - shorter) / 2, side, scale);

  // Columns first, only in the source rows that are needed.
  const auto first_row = static_cast<std::size_t>(rows.front().first);
  const auto end_row = static_cast<std::size_t>(rows.back().first) + rows.back().weights.size();
  std::vector<float> narrow((end_row - first_row) * out_width * kChannels);
  float* to = narrow.data();
  for (std::size_t y = first_row; y < end_row; ++y) {
    for (const Taps& taps : columns) {
      const std::uint8_t* from =
          &image.pixels[(y * width + static_cast<std::size_t>(taps.first)) * kChannels];
      float sum[kChannels] = {};
      for (const float weight : taps.weights) {
        for (float& channel : sum) channel += weight * static_cast<float>(*from++);
      }
      to = std::copy(std::begin(sum), std::end(sum), to);
    }
  }

  const std::size_t row_values = out_width * kChannels;
  std::vector<float> line(row_values);
  for (std::size_t y = 0; y < out_width; ++y) {
    std::ranges::fill(line, 0.0f);
    const float* from = &narrow[(static_cast<std::size_t>(rows[y].first) - first_row) * row_values];
    for (const float weight : rows[y].weights) {
      for (float& value : line) value += weight * *from++;
    }
    for (std::size_t x = 0; x < row_values; ++x) {
      pixels[y * row_values + x] =
          static_cast<std::uint8_t>(std::clamp(line[x] + 0.5f, 0.0f, 255.0f));
    }
  }
}

}  // namespace dstrain
