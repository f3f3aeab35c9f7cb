#include <fmt/format.h>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/data/formats.h"
#include "engine/data/image_decode.h"

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

}  // namespace

std::unique_ptr<ImageDataset> open_image_files(ImageList list, const SquareResize& resize,
                                               bool jpeg_scaling) {
  return std::make_unique<ImageFiles>(std::move(list), resize, jpeg_scaling);
}

}  // namespace dstrain::formats
