#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <optional>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/input_file.h"
#include "engine/base/tar_file.h"
#include "engine/data/formats.h"
#include "engine/data/images/image_decode.h"
#include "engine/data/images/image_pack.h"
#include "engine/data/images/image_resize.h"
#include "engine/data/images/parquet_images.h"
#include "engine/data/text/progress_sink.h"

namespace dstrain::formats {
namespace {

constexpr std::uint64_t kMaxFileBytes = std::uint64_t{256} << 20;

/// What read() makes of an image.
enum class Stored {
  square,  ///< what a random crop is cut from
  middle,  ///< what evaluation takes
};

class ImageFiles final : public ImageDataset {
 public:
  /// `pack` may be null.
  ImageFiles(ImageList list, std::shared_ptr<const PackedImages> pack, const SquareResize& resize,
             Stored stored, bool jpeg_scaling)
      : list_(std::move(list)),
        pack_(std::move(pack)),
        resize_(resize),
        stored_(stored),
        jpeg_scaling_(jpeg_scaling) {}

  [[nodiscard]] std::int64_t size() const override {
    return pack_ ? pack_->size() : static_cast<std::int64_t>(list_.items.size());
  }
  [[nodiscard]] int classes() const override { return list_.classes; }
  [[nodiscard]] std::vector<std::string> class_names() const override { return list_.class_names; }
  [[nodiscard]] ImageShape shape() const override {
    const int side = stored_ == Stored::square ? resize_.side : resize_.input;
    return {side, side, 3};
  }
  [[nodiscard]] int frames() const override { return list_.frames; }

  [[nodiscard]] int read(std::int64_t index, std::span<std::uint8_t> pixels) const override {
    const auto frame_bytes = static_cast<std::size_t>(shape().bytes());
    return read_parts(
        index, {.min_side = resize_.side}, [&](int frame, const ImagePart& part, const ImageView&) {
          const auto to =
              pixels.subspan(static_cast<std::size_t>(frame) * frame_bytes, frame_bytes);
          const auto resize = stored_ == Stored::square ? resize_to_square : resize_to_middle;
          resize(part.image, resize_, to);
        });
  }
  [[nodiscard]] std::int64_t stored_bytes(std::int64_t index) const override {
    std::int64_t bytes = 0;
    for (int frame = 0; frame < list_.frames; ++frame) {
      bytes += pack_
                   ? pack_->stored_bytes(index, frame)
                   : std::ssize(list_.read(list_.items.at(static_cast<std::size_t>(index)), frame));
    }
    return bytes;
  }
  [[nodiscard]] std::optional<StoredImage> stored(std::int64_t index, int frame) const override {
    if (pack_) {
      const std::optional<std::string_view> bytes = pack_->file(index, frame);
      if (!bytes) return {};
      return StoredImage{.bytes = *bytes, .label = pack_->label(index)};
    }
    const ImageList::Item& item = list_.items.at(static_cast<std::size_t>(index));
    return StoredImage{.owned = list_.read(item, frame), .label = item.label};
  }
  [[nodiscard]] const SquareResize* square() const override {
    return stored_ == Stored::square ? &resize_ : nullptr;
  }
  [[nodiscard]] int read_parts(
      std::int64_t index, const DecodeRequest& request,
      const std::function<void(int, const ImagePart&, const ImageView&)>& take) const override {
    DecodeRequest own = request;
    own.large = &large_;
    if (!jpeg_scaling_) own.min_side = kFullSize;
    const auto at = static_cast<std::size_t>(index);
    for (int frame = 0; frame < list_.frames; ++frame) {
      const ImagePart part =
          pack_ ? pack_->decode(index, frame, own) : list_.decode(list_.items.at(at), frame, own);
      take(frame, part, {part.image.pixels, part.image.width, part.image.height});
    }
    return label(index);
  }
  [[nodiscard]] int label(std::int64_t index) const override {
    return pack_ ? pack_->label(index) : list_.items.at(static_cast<std::size_t>(index)).label;
  }

 private:
  ImageList list_;  ///< without items where they are packed
  std::shared_ptr<const PackedImages> pack_;
  SquareResize resize_;
  Stored stored_;
  bool jpeg_scaling_;
  mutable std::mutex large_;
};

/// 256 for 224 leaves the usual room for a random crop.
int square_side(const DataConfig& data, int image_size) {
  if (data.resize_side > 0) return data.resize_side;
  return data.resize == Fit::stretch ? image_size
                                     : static_cast<int>(std::lround(image_size * 8.0 / 7.0));
}

}  // namespace

std::filesystem::path ImageList::path(const Item& item, int frame) const {
  if (item.archive >= 0) return archives->at(static_cast<std::size_t>(item.archive)).path();
  return root / (item.frames.empty() ? item.file : item.frames.at(static_cast<std::size_t>(frame)));
}

std::string ImageList::name(const Item& item, int frame) const {
  const std::string file = path(item, frame).string();
  return item.archive < 0 ? file : fmt::format("{}: {}", file, item.file);
}

std::string ImageList::read(const Item& item, int frame) const {
  if (item.archive < 0) return read_file(path(item, frame), kMaxFileBytes);
  if (std::cmp_greater(item.bytes, kMaxFileBytes))
    throw Error(ErrorKind::data,
                fmt::format("{}: {} bytes are no image", name(item, frame), item.bytes));
  return archives->at(static_cast<std::size_t>(item.archive)).read(item.offset, item.bytes);
}

ImagePart ImageList::decode(const Item& item, int frame, const DecodeRequest& request,
                            std::string* file) const {
  std::string bytes = read(item, frame);
  ImagePart part = decode_part(bytes, request, name(item, frame));
  if (file != nullptr) *file = std::move(bytes);
  return part;
}

std::filesystem::path required_folder(const DataConfig& data, const char* what) {
  if (data.path.empty()) {
    throw Error(ErrorKind::usage, fmt::format("data.path is empty; it must name {}", what),
                "set data.path in the recipe or with --set data.path=...");
  }
  if (path_kind(data.path) != PathKind::folder) {
    throw Error(ErrorKind::data,
                fmt::format("data.path '{}' is not a folder; it must name {}", data.path, what),
                "put the data there, or name its folder with --set data.path=... (recipes read "
                "DSTRAIN_DATA); recipes with _random_ in their names need no data");
  }
  return data.path;
}

std::unique_ptr<ImageDataset> open_image_files(ImageList list, const DataConfig& data, Split split,
                                               int image_size, ProgressSink* progress,
                                               PackSource* source) {
  const int side = square_side(data, image_size);
  const SquareResize resize = {.fit = data.resize,
                               .side = side,
                               .input = std::min(side, image_size),
                               .filter = data.interpolation};
  const bool training = split == Split::train;
  if (progress != nullptr && !list.others.by_extension.empty()) {
    progress->note(
        fmt::format("left out below {}: {} (not JPEG, PNG or WebP by name; the first is {})",
                    list.root.string(), list.others.describe(), list.others.first));
  }
  std::shared_ptr<const PackedImages> pack;
  if (data.pack != Pack::none || source != nullptr) {
    ListSource files(list);
    const PackForm form = {data, data.pack, data.pack_side > 0 ? data.pack_side : side};
    pack = open_pack(source == nullptr ? files : *source, form, split, progress);
    list.items.clear();
  }
  const bool packed = pack != nullptr;
  // Evaluation decodes at full size, so that it is what others' evaluation is.
  auto images = std::make_unique<ImageFiles>(std::move(list), std::move(pack), resize,
                                             training ? Stored::square : Stored::middle,
                                             training && data.jpeg_scaling);
  // What cannot be read has been left out of a packed file.
  if (!packed && data.bad_record == BadRecord::skip)
    images->handle_damaged(training ? DamagedImage::replace : DamagedImage::blank);
  return images;
}

ImageShape square_shape(const DataConfig& data, int image_size) {
  const int side = square_side(data, image_size);
  return {side, side, 3};
}

DatasetFacts facts_of_files(const DataConfig& data,
                            ImageList (*list)(const std::filesystem::path&, Split)) {
  if (path_kind(data.path) != PathKind::folder) return {};
  if (holds_parquet_images(data.path)) {
    const ParquetImages found = find_parquet_images(data, Split::train);
    return {.classes = found.classes, .train_size = count_rows(found)};
  }
  const ImageList found = list(data.path, Split::train);
  return {.classes = found.classes, .train_size = static_cast<std::int64_t>(found.items.size())};
}

}  // namespace dstrain::formats
