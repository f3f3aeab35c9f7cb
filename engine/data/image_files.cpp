#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/input_file.h"
#include "engine/data/formats.h"
#include "engine/data/image_decode.h"
#include "engine/data/image_resize.h"

namespace dstrain::formats {
namespace {

constexpr std::uint64_t kMaxFileBytes = std::uint64_t{256} << 20;

class ImageFiles final : public ImageDataset {
 public:
  ImageFiles(ImageList list, const SquareResize& resize, bool jpeg_scaling)
      : list_(std::move(list)),
        resize_(resize),
        least_side_(jpeg_scaling ? resize.side : kFullSize) {}

  [[nodiscard]] std::int64_t size() const override {
    return static_cast<std::int64_t>(list_.items.size());
  }
  [[nodiscard]] int classes() const override { return list_.classes; }
  [[nodiscard]] ImageShape shape() const override { return {resize_.side, resize_.side, 3}; }
  [[nodiscard]] int read(std::int64_t index, std::span<std::uint8_t> pixels) const override {
    const auto& item = list_.items.at(static_cast<std::size_t>(index));
    const auto path = list_.root / item.file;
    const auto image = decode_image(read_file(path, kMaxFileBytes), least_side_, path.string());
    resize_to_square(image, resize_, pixels);
    return item.label;
  }

 private:
  ImageList list_;
  SquareResize resize_;
  int least_side_;
};

/// 256 for 224 leaves the usual room for a random crop.
int square_side(const DataConfig& data, int image_size) {
  if (data.resize_side > 0) return data.resize_side;
  return data.resize == Fit::stretch ? image_size
                                     : static_cast<int>(std::lround(image_size * 8.0 / 7.0));
}

}  // namespace

std::filesystem::path required_folder(const DataConfig& data, const char* what) {
  if (data.path.empty()) {
    throw Error(ErrorKind::usage, fmt::format("data.path is empty; it must name {}", what),
                "set data.path in the recipe or with --set data.path=...");
  }
  if (path_kind(data.path) != PathKind::folder) {
    throw Error(ErrorKind::data,
                fmt::format("data.path '{}' is not a folder; it must name {}", data.path, what),
                "put the data there, or name its folder with --set data.path=... (recipes read "
                "DSTRAIN_DATA); recipes/vit/*_random_* need no data");
  }
  return data.path;
}

std::unique_ptr<ImageDataset> open_image_files(ImageList list, const DataConfig& data,
                                               int image_size) {
  const int side = square_side(data, image_size);
  const SquareResize resize = {.fit = data.resize,
                               .side = side,
                               .input = std::min(side, image_size),
                               .filter = data.interpolation};
  return std::make_unique<ImageFiles>(std::move(list), resize, data.jpeg_scaling);
}

ImageShape square_shape(const DataConfig& data, int image_size) {
  const int side = square_side(data, image_size);
  return {side, side, 3};
}

DatasetFacts facts_of_files(const DataConfig& data,
                            ImageList (*list)(const std::filesystem::path&, Split)) {
  if (path_kind(data.path) != PathKind::folder) return {};
  const ImageList found = list(data.path, Split::train);
  return {.classes = found.classes, .train_size = static_cast<std::int64_t>(found.items.size())};
}

}  // namespace dstrain::formats
