#include "engine/kernels/image/operations.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numbers>
#include <vector>

#include "engine/base/error.h"

namespace dstrain {
namespace {

struct Image {
  std::span<std::uint8_t> pixels;
  int width, height, channels;
  [[nodiscard]] std::size_t count() const {
    return pixels.size() / static_cast<std::size_t>(channels);
  }
};

/// torch.linspace(start, end, kMagnitudes)[level] in single precision, which runs from both ends.
float spaced(float start, float end, int level) {
  const float step = (end - start) / static_cast<float>(kMagnitudes - 1);
  return level < kMagnitudes / 2 ? start + step * static_cast<float>(level)
                                 : end - step * static_cast<float>(kMagnitudes - 1 - level);
}

/// The product and the sum of `a + b * c` in single precision, rounded once.
float multiply_add(float a, float b, float c) {
  return static_cast<float>(static_cast<double>(a) +
                            static_cast<double>(b) * static_cast<double>(c));
}

std::uint8_t clamped(float value) {
  return static_cast<std::uint8_t>(std::clamp(value, 0.0F, 255.0F));
}

/// Rounded down, as torchvision has it for whole numbers.
float luma(const std::uint8_t* rgb) {
  float value = static_cast<float>(rgb[0]) * 0.2989F;
  value = multiply_add(value, static_cast<float>(rgb[1]), 0.587F);
  return std::floor(multiply_add(value, static_cast<float>(rgb[2]), 0.114F));
}

/// value * ratio + other * (1 - ratio).
struct Blend {
  explicit Blend(double ratio)
      : own(static_cast<float>(ratio)), rest(static_cast<float>(1.0 - ratio)) {}
  [[nodiscard]] std::uint8_t operator()(std::uint8_t value, float other) const {
    return clamped(multiply_add(static_cast<float>(value) * own, other, rest));
  }
  float own, rest;
};

/// Source = matrix * destination, both from the middle of the image.
struct Affine {
  double xx, xy, x0, yx, yy, y0;
};

/// Nearest neighbours, zeros outside.
void transform(const Image& image, const Affine& a) {
  const std::vector<std::uint8_t> source(image.pixels.begin(), image.pixels.end());
  const double middle_x = (image.width - 1) / 2.0, middle_y = (image.height - 1) / 2.0;
  const auto channels = static_cast<std::size_t>(image.channels);
  std::uint8_t* to = image.pixels.data();
  for (int y = 0; y < image.height; ++y) {
    for (int x = 0; x < image.width; ++x, to += channels) {
      const double dx = x - middle_x, dy = y - middle_y;
      const double from_x = std::nearbyint(a.xx * dx + a.xy * dy + a.x0 + middle_x);
      const double from_y = std::nearbyint(a.yx * dx + a.yy * dy + a.y0 + middle_y);
      if (from_x < 0 || from_y < 0 || from_x >= image.width || from_y >= image.height) {
        std::memset(to, 0, channels);
        continue;
      }
      const auto at = static_cast<std::size_t>(from_y) * static_cast<std::size_t>(image.width) +
                      static_cast<std::size_t>(from_x);
      std::memcpy(to, &source[at * channels], channels);
    }
  }
}

/// Around the upper left corner.
void shear(const Image& image, double x, double y) {
  const double corner_x = -image.width / 2.0, corner_y = -image.height / 2.0;
  transform(image, {.xx = 1, .xy = x, .x0 = -x * corner_y, .yx = y, .yy = 1, .y0 = -y * corner_x});
}

void rotate(const Image& image, double degrees) {
  const double angle = -degrees * std::numbers::pi / 180;
  const double c = std::cos(angle), s = std::sin(angle);
  transform(image, {.xx = c, .xy = s, .x0 = 0, .yx = -s, .yy = c, .y0 = 0});
}

void brightness(const Image& image, double factor) {
  for (std::uint8_t& value : image.pixels)
    value = clamped(static_cast<float>(value) * static_cast<float>(factor));
}

void color(const Image& image, double factor) {
  if (image.channels == 1) return;
  const Blend blend(factor);
  for (std::size_t i = 0; i < image.pixels.size(); i += 3) {
    const float grey = luma(&image.pixels[i]);
    for (std::size_t c = 0; c < 3; ++c) image.pixels[i + c] = blend(image.pixels[i + c], grey);
  }
}

void contrast(const Image& image, double factor) {
  double sum = 0;  // of whole numbers: exact
  if (image.channels == 1) {
    for (const std::uint8_t value : image.pixels) sum += value;
  } else {
    for (std::size_t i = 0; i < image.pixels.size(); i += 3)
      sum += static_cast<double>(luma(&image.pixels[i]));
  }
  const float mean = static_cast<float>(sum) / static_cast<float>(image.count());
  const Blend blend(factor);
  for (std::uint8_t& value : image.pixels) value = blend(value, mean);
}

/// Against the mean of nine neighbours of which the middle one counts five times; the border stays.
void sharpness(const Image& image, double factor) {
  if (image.width <= 2 || image.height <= 2) return;
  const std::vector<std::uint8_t> source(image.pixels.begin(), image.pixels.end());
  const auto channels = static_cast<std::ptrdiff_t>(image.channels);
  const std::ptrdiff_t stride = image.width * channels;
  const auto rest = static_cast<float>(1.0 - factor);
  for (int y = 1; y + 1 < image.height; ++y) {
    for (std::ptrdiff_t i = channels; i < stride - channels; ++i) {
      const std::ptrdiff_t at = y * stride + i;
      const std::uint8_t* p = source.data() + at;
      int sum = 4 * p[0];
      for (const std::ptrdiff_t row : {-stride, std::ptrdiff_t{0}, stride})
        sum += p[row - channels] + p[row] + p[row + channels];
      // Never half way between two whole numbers.
      const float smooth = std::nearbyint(static_cast<float>(sum) / 13.0F);
      const auto value = static_cast<float>(p[0]);
      image.pixels[static_cast<std::size_t>(at)] =
          clamped(multiply_add(value, smooth - value, rest));
    }
  }
}

void posterize(const Image& image, int bits) {
  const auto mask = static_cast<std::uint8_t>(0xff << (8 - bits));
  for (std::uint8_t& value : image.pixels) value &= mask;
}

void solarize(const Image& image, float threshold) {
  for (std::uint8_t& value : image.pixels) {
    if (static_cast<float>(value) >= threshold) value = static_cast<std::uint8_t>(255 - value);
  }
}

/// Each value of a channel becomes what `table` says.
void look_up(const Image& image, int channel, const std::array<std::uint8_t, 256>& table) {
  for (auto i = static_cast<std::size_t>(channel); i < image.pixels.size();
       i += static_cast<std::size_t>(image.channels))
    image.pixels[i] = table[image.pixels[i]];
}

std::array<std::int64_t, 256> histogram(const Image& image, int channel) {
  std::array<std::int64_t, 256> counts{};
  for (auto i = static_cast<std::size_t>(channel); i < image.pixels.size();
       i += static_cast<std::size_t>(image.channels))
    ++counts[image.pixels[i]];
  return counts;
}

void auto_contrast(const Image& image) {
  for (int channel = 0; channel < image.channels; ++channel) {
    const auto counts = histogram(image, channel);
    const auto used = [](std::int64_t count) { return count > 0; };
    const auto low = static_cast<float>(std::ranges::find_if(counts, used) - counts.begin());
    const auto high = static_cast<float>(
        255 - (std::find_if(counts.rbegin(), counts.rend(), used) - counts.rbegin()));
    if (low == high) continue;
    const float scale = (high - low) * static_cast<float>(1.0 / 255);
    std::array<std::uint8_t, 256> table;
    for (std::size_t i = 0; i < table.size(); ++i)
      table[i] = clamped((static_cast<float>(i) - low) / scale);
    look_up(image, channel, table);
  }
}

void equalize(const Image& image) {
  for (int channel = 0; channel < image.channels; ++channel) {
    const auto counts = histogram(image, channel);
    const auto last =
        *std::find_if(counts.rbegin(), counts.rend(), [](std::int64_t count) { return count > 0; });
    const std::int64_t step = (static_cast<std::int64_t>(image.count()) - last) / 255;
    if (step == 0) continue;
    std::array<std::uint8_t, 256> table;
    std::int64_t below = step / 2;
    for (std::size_t i = 0; i < table.size(); ++i) {
      table[i] = static_cast<std::uint8_t>(std::min<std::int64_t>(255, below / step));
      below += counts[i];
    }
    look_up(image, channel, table);
  }
}

}  // namespace

double magnitude_of(OperationSpace space, ImageOperation operation, int level, int width,
                    int height) {
  DSTRAIN_CHECK(level >= 0 && level < kMagnitudes, "no such strength");
  const bool wide = space == OperationSpace::trivial_augment;
  const auto translation = [&](int side) {
    const float max = wide ? 32.0F : static_cast<float>(150.0 / 331.0 * side);
    return static_cast<double>(spaced(0, max, level));
  };
  using enum ImageOperation;
  switch (operation) {
    case identity:
    case auto_contrast:
    case equalize:
      return 0;
    case shear_x:
    case shear_y:
      return static_cast<double>(spaced(0, wide ? 0.99F : 0.3F, level));
    case translate_x:
      return translation(width);
    case translate_y:
      return translation(height);
    case rotate:
      return static_cast<double>(spaced(0, wide ? 135.0F : 30.0F, level));
    case brightness:
    case color:
    case contrast:
    case sharpness:
      return static_cast<double>(spaced(0, wide ? 0.99F : 0.9F, level));
    case posterize: {
      const float step = static_cast<float>((kMagnitudes - 1) / (wide ? 6.0 : 4.0));
      return static_cast<double>(std::nearbyint(8.0F - static_cast<float>(level) / step));
    }
    case solarize:
      return static_cast<double>(spaced(1, 0, level));
  }
  return 0;
}

bool is_signed(ImageOperation operation) {
  return operation >= ImageOperation::shear_x && operation <= ImageOperation::sharpness;
}

void apply_operation(ImageOperation operation, double magnitude, std::span<std::uint8_t> pixels,
                     int width, int height, int channels) {
  DSTRAIN_CHECK((channels == 1 || channels == 3) &&
                    std::ssize(pixels) == std::ptrdiff_t{width} * height * channels,
                "pixels [height, width, channels]");
  const Image image{pixels, width, height, channels};
  using enum ImageOperation;
  switch (operation) {
    case identity:
      return;
    case shear_x:
      return shear(image, magnitude, 0);
    case shear_y:
      return shear(image, 0, magnitude);
    case translate_x:
      return transform(image,
                       {.xx = 1, .xy = 0, .x0 = -std::trunc(magnitude), .yx = 0, .yy = 1, .y0 = 0});
    case translate_y:
      return transform(image,
                       {.xx = 1, .xy = 0, .x0 = 0, .yx = 0, .yy = 1, .y0 = -std::trunc(magnitude)});
    case rotate:
      return dstrain::rotate(image, magnitude);
    case brightness:
      return dstrain::brightness(image, 1 + magnitude);
    case color:
      return dstrain::color(image, 1 + magnitude);
    case contrast:
      return dstrain::contrast(image, 1 + magnitude);
    case sharpness:
      return dstrain::sharpness(image, 1 + magnitude);
    case posterize:
      return dstrain::posterize(image, static_cast<int>(magnitude));
    case solarize:
      return dstrain::solarize(image, static_cast<float>(255 * magnitude));
    case auto_contrast:
      return dstrain::auto_contrast(image);
    case equalize:
      return dstrain::equalize(image);
  }
}

}  // namespace dstrain
