#include <fmt/format.h>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/data/formats.h"
#include "engine/data/image_decode.h"
#include "engine/data/image_resize.h"

namespace dstrain::formats {
namespace {

constexpr std::uint64_t kMaxFileBytes = std::uint64_t{256} << 20;

class ImageFiles final : public ImageDataset {
 public:
  ImageFiles(ImageList list, int side) : list_(std::move(list)), side_(side) {}

  [[nodiscard]] std::int64_t size() const override {
    return static_cast<std::int64_t>(list_.items.size());
  }
  [[nodiscard]] int classes() const override { return list_.classes; }
  [[nodiscard]] ImageShape shape() const override { return {side_, side_, 3}; }
  [[nodiscard]] int read(std::int64_t index, std::span<std::uint8_t> pixels) const override {
    const auto& item = list_.items.at(static_cast<std::size_t>(index));
    const auto path = list_.root / item.file;
    const auto image = decode_image(read_file(path, kMaxFileBytes), side_, path.string());
    resize_center_square(image, side_, pixels);
    return item.label;
  }

 private:
  ImageList list_;
  int side_;
};

}  // namespace

std::unique_ptr<ImageDataset> open_image_files(ImageList list, int side) {
  return std::make_unique<ImageFiles>(std::move(list), side);
}

}  // namespace dstrain::formats
