#include "engine/data/images/image_choices.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "engine/kernels/image/image_random.h"

namespace dstrain {
namespace {

constexpr int kTries = 10;
/// Width to height of what random_erasing fills, or the other way round. arXiv:1708.04896, sec. 4.
constexpr double kEraseRatio[] = {0.3, 3.3};

/// The random numbers of one use for one sample, one after the other.
class Draws {
 public:
  Draws(std::uint64_t key, ImageDraw use, std::int64_t epoch, std::int64_t sample)
      : key_(key), use_(use), epoch_(epoch), sample_(sample) {}

  /// In (0, 1), with 32 bits.
  double uniform() { return (static_cast<double>(word()) + 0.5) * 0x1p-32; }
  double between(double low, double high) { return low + (high - low) * uniform(); }
  int below(int bound) {
    return static_cast<int>(std::uint64_t{word()} * static_cast<std::uint64_t>(bound) >> 32);
  }
  bool coin() { return word() >> 31 != 0; }
  /// Box and Muller 1958.
  double normal() {
    const double radius = std::sqrt(-2 * std::log(uniform()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }

 private:
  std::uint32_t word() {
    if (used_ == 4) {
      words_ = image_random(key_, use_, epoch_, sample_, index_++);
      used_ = 0;
    }
    return words_.word[used_++];
  }

  std::uint64_t key_;
  ImageDraw use_;
  std::int64_t epoch_, sample_;
  std::uint64_t index_ = 0;
  Philox words_{};
  int used_ = 4;
};

/// Logarithm of a gamma variate. Marsaglia and Tsang 2000, "A simple method for generating gamma
/// variables", sec. 8 for shapes below 1: as a logarithm, since such a variate may be too small.
double log_gamma_variate(double shape, Draws& draws) {
  const double boost = shape < 1 ? std::log(draws.uniform()) / shape : 0;
  const double d = (shape < 1 ? shape + 1 : shape) - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = draws.normal(), root = 1 + c * x;
    if (root <= 0) continue;
    const double v = root * root * root;
    if (std::log(draws.uniform()) < 0.5 * x * x + d - d * v + d * std::log(v))
      return std::log(d * v) + boost;
  }
}

/// A draw from the beta distribution with both parameters `alpha`.
double beta_variate(double alpha, Draws& draws) {
  const double a = log_gamma_variate(alpha, draws), b = log_gamma_variate(alpha, draws);
  return 1 / (1 + std::exp(b - a));
}

/// Width and height of a share of `area` between `shares`, of a random width / height.
struct Extent {
  double width, height;
};
Extent draw_extent(double area, std::span<const double> shares, std::span<const double> ratios,
                   Draws& draws) {
  const double wanted = area * draws.between(shares[0], shares[1]);
  const double ratio = std::exp(draws.between(std::log(ratios[0]), std::log(ratios[1])));
  return {std::nearbyint(std::sqrt(wanted * ratio)), std::nearbyint(std::sqrt(wanted / ratio))};
}

}  // namespace

ImageChoices::ImageChoices(const DataConfig& data, int side, std::int64_t seed)
    : side_(side),
      key_(random_key(static_cast<std::uint64_t>(seed), RandomStream::augment)),
      filter_(data.interpolation),
      scale_{data.crop_scale[0], data.crop_scale[1]},
      ratio_{data.crop_ratio[0], data.crop_ratio[1]},
      area_{data.erase_area[0], data.erase_area[1]},
      operations_(data.randaugment_ops),
      level_(data.randaugment_magnitude),
      erase_probability_(data.erase_probability),
      mixup_alpha_(data.mixup_alpha),
      cutmix_alpha_(data.cutmix_alpha) {
  for (const Augmentation augmentation : data.augment) {
    switch (augmentation) {
      case Augmentation::random_crop:
      case Augmentation::horizontal_flip:
        break;  // made on the device
      case Augmentation::random_resized_crop:
        windows_ = true;
        break;
      case Augmentation::trivial_augment:
        space_ = OperationSpace::trivial_augment;
        break;
      case Augmentation::rand_augment:
        space_ = OperationSpace::rand_augment;
        break;
      case Augmentation::random_erasing:
        erases_ = true;
        break;
      case Augmentation::mixup:
        mixup_ = true;
        break;
      case Augmentation::cutmix:
        cutmix_ = true;
        break;
    }
  }
}

ImageWindow ImageChoices::window(std::int64_t epoch, std::int64_t sample, int width,
                                 int height) const {
  Draws draws(key_, ImageDraw::window, epoch, sample);
  for (int i = 0; i < kTries; ++i) {
    const Extent extent = draw_extent(static_cast<double>(width) * height, scale_, ratio_, draws);
    if (extent.width < 1 || extent.width > width || extent.height < 1 || extent.height > height)
      continue;
    const int w = static_cast<int>(extent.width), h = static_cast<int>(extent.height);
    const int top = draws.below(height - h + 1), left = draws.below(width - w + 1);
    return {left, top, w, h};
  }
  // The largest one in the middle.
  const double ratio = static_cast<double>(width) / height;
  int w = width, h = height;
  if (ratio < ratio_[0]) {
    h = std::max(1, static_cast<int>(std::nearbyint(w / ratio_[0])));
  } else if (ratio > ratio_[1]) {
    w = std::max(1, static_cast<int>(std::nearbyint(h * ratio_[1])));
  }
  return {(width - w) / 2, (height - h) / 2, w, h};
}

void ImageChoices::operate(std::int64_t epoch, std::int64_t sample, std::span<std::uint8_t> pixels,
                           int width, int height, int channels) const {
  const bool trivial = space_ == OperationSpace::trivial_augment;
  Draws draws(key_, ImageDraw::operation, epoch, sample);
  for (int i = 0; i < (trivial ? 1 : operations_); ++i) {
    const auto operation = static_cast<ImageOperation>(draws.below(kNumImageOperations));
    const int level = draws.below(kMagnitudes);
    const bool negative = draws.coin();
    double magnitude = magnitude_of(*space_, operation, trivial ? level : level_, width, height);
    if (negative && is_signed(operation)) magnitude = -magnitude;
    apply_operation(operation, magnitude, pixels, width, height, channels);
  }
}

ImageWindow ImageChoices::erased(std::int64_t epoch, std::int64_t sample) const {
  Draws draws(key_, ImageDraw::erase, epoch, sample);
  if (draws.uniform() >= erase_probability_) return {};
  for (int i = 0; i < kTries; ++i) {
    const Extent extent =
        draw_extent(static_cast<double>(side_) * side_, area_, kEraseRatio, draws);
    if (extent.width >= side_ || extent.height >= side_) continue;
    const int w = static_cast<int>(extent.width), h = static_cast<int>(extent.height);
    const int top = draws.below(side_ - h + 1), left = draws.below(side_ - w + 1);
    return {left, top, w, h};
  }
  return {};
}

ImageChoices::Mix ImageChoices::mix(std::int64_t epoch, std::int64_t sample) const {
  Draws draws(key_, ImageDraw::mix, epoch, sample);
  const bool cut = draws.coin();
  if (mixup_ && !(cutmix_ && cut)) {
    const auto share = static_cast<float>(beta_variate(mixup_alpha_, draws));
    return {.share = share, .label_share = share};
  }
  const double share = beta_variate(cutmix_alpha_, draws);
  const int half = static_cast<int>(0.5 * std::sqrt(1 - share) * side_);
  const int x = draws.below(side_), y = draws.below(side_);
  const int left = std::max(0, x - half), top = std::max(0, y - half);
  const int right = std::min(side_, x + half), bottom = std::min(side_, y + half);
  const double area = static_cast<double>(right - left) * (bottom - top);
  return {.window = {left, top, right - left, bottom - top},
          .label_share = static_cast<float>(1 - area / (static_cast<double>(side_) * side_))};
}

}  // namespace dstrain
