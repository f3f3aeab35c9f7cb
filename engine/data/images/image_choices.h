#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "engine/data/images/image_decode.h"
#include "engine/kernels/image/operations.h"
#include "engine/recipe/recipe.h"

namespace dstrain {

/// The random choices of training about images that are made before the upload: each is a pure
/// function of (seed, epoch, sample), the same at any number of ranks.
class ImageChoices {
 public:
  /// As data.augment and the keys beside it say, for images of `side` pixels.
  ImageChoices(const DataConfig& data, int side, std::int64_t seed);

  [[nodiscard]] int side() const { return side_; }
  /// Filter of resizes.
  [[nodiscard]] Interpolation filter() const { return filter_; }
  [[nodiscard]] bool windows() const { return windows_; }
  [[nodiscard]] bool operates() const { return space_.has_value(); }
  [[nodiscard]] bool erases() const { return erases_; }
  [[nodiscard]] bool mixes() const { return mixup_ || cutmix_; }

  /// What random_resized_crop cuts out of an image of this size: torchvision's RandomResizedCrop.
  [[nodiscard]] ImageWindow window(std::int64_t epoch, std::int64_t sample, int width,
                                   int height) const;
  /// trivial_augment or rand_augment on `pixels` [height, width, channels].
  void operate(std::int64_t epoch, std::int64_t sample, std::span<std::uint8_t> pixels, int width,
               int height, int channels) const;
  /// The rectangle that random_erasing fills, of width 0 for most samples: torchvision's
  /// RandomErasing.
  [[nodiscard]] ImageWindow erased(std::int64_t epoch, std::int64_t sample) const;

  /// How a sample is mixed with another one.
  struct Mix {
    float share = 1;          ///< of the sample in its pixels (mixup); 1 with a rectangle
    ImageWindow window = {};  ///< that is the other one's (cutmix); of width 0 with mixup
    float label_share = 1;    ///< of the sample's label
  };
  /// mixup or cutmix; with both, one of them with even odds.
  [[nodiscard]] Mix mix(std::int64_t epoch, std::int64_t sample) const;

 private:
  int side_;
  std::uint64_t key_;
  Interpolation filter_;
  bool windows_ = false, erases_ = false, mixup_ = false, cutmix_ = false;
  std::optional<OperationSpace> space_;
  std::array<double, 2> scale_, ratio_, area_;
  int operations_, level_;
  double erase_probability_, mixup_alpha_, cutmix_alpha_;
};

}  // namespace dstrain
