#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "engine/base/error.h"
#include "engine/data/batch_tensors.h"
#include "engine/data/damaged_files.h"
#include "engine/data/dataset.h"
#include "engine/data/images/image_choices.h"
#include "engine/data/images/image_decode.h"
#include "engine/data/images/image_resize.h"
#include "engine/data/images/jpeg_decode.h"
#include "engine/data/images/jpeg_units.h"

namespace dstrain {
namespace {

/// More images in a row that cannot be read are no few damaged files, but a disk that is gone.
constexpr std::int64_t kMaxReplacements = 64;

void put(const ImageWindow& window, const at::Tensor& tensor, std::int64_t row) {
  const auto to = row_of<std::int32_t>(tensor, row, 4);
  to[0] = window.left;
  to[1] = window.top;
  to[2] = window.width;
  to[3] = window.height;
}

std::span<std::uint8_t> frame_of(std::span<std::uint8_t> pixels, int frame,
                                 const ImageShape& image) {
  const auto bytes = static_cast<std::size_t>(image.bytes());
  return pixels.subspan(static_cast<std::size_t>(frame) * bytes, bytes);
}

}  // namespace

ImageDataset::ImageDataset() = default;
ImageDataset::~ImageDataset() = default;

void ImageDataset::augment_with(const ImageChoices& choices) {
  choices_ = std::make_unique<const ImageChoices>(choices);
}

void ImageDataset::decode_by(std::shared_ptr<JpegUnits> units) { units_ = std::move(units); }

void ImageDataset::handle_damaged(DamagedImage how) {
  damaged_ = how;
  named_ = std::make_unique<DamagedFiles>();
}

ImageShape ImageDataset::batch_shape() const {
  if (!cuts_windows()) return shape();
  return {choices_->side(), choices_->side(), shape().channels};
}

HostBatch ImageDataset::allocate(std::int64_t rows, bool pinned) const {
  const ImageShape image = batch_shape();
  HostBatch batch;
  batch.pixels =
      host_tensor({rows * frames(), image.height, image.width, image.channels}, at::kByte, pinned);
  batch.labels = host_tensor({rows}, at::kLong, pinned);
  batch.weights = host_tensor({rows}, at::kFloat, pinned);
  batch.samples = host_tensor({rows}, at::kLong, pinned);
  if (choices_ != nullptr && choices_->erases())
    batch.erased = host_tensor({rows, 4}, at::kInt, pinned);
  if (choices_ != nullptr && choices_->mixes()) {
    batch.mixed_shares = host_tensor({rows}, at::kFloat, pinned);
    batch.mixed_windows = host_tensor({rows, 4}, at::kInt, pinned);
    batch.second_labels = host_tensor({rows}, at::kLong, pinned);
    batch.label_shares = host_tensor({rows}, at::kFloat, pinned);
  }
  return batch;
}

int ImageDataset::label(std::int64_t index) const {
  std::vector<std::uint8_t> pixels(static_cast<std::size_t>(shape().bytes() * frames()));
  return read(index, pixels);
}

int ImageDataset::read_parts(
    std::int64_t index, const DecodeRequest& request,
    const std::function<void(int, const ImagePart&, const ImageView&)>& take) const {
  const ImageShape image = shape();
  const auto channels = static_cast<std::size_t>(image.channels);
  const auto frame_bytes = static_cast<std::size_t>(image.bytes());
  std::vector<std::uint8_t> pixels(frame_bytes * static_cast<std::size_t>(frames())), part;
  const int label = read(index, pixels);
  for (int frame = 0; frame < frames(); ++frame) {
    const ImageWindow window = request.window(image.width, image.height);
    part.clear();
    for (int y = window.top; y < window.top + window.height; ++y) {
      const auto at = static_cast<std::size_t>(frame) * frame_bytes +
                      (static_cast<std::size_t>(y) * static_cast<std::size_t>(image.width) +
                       static_cast<std::size_t>(window.left)) *
                          channels;
      const auto from = pixels.begin() + static_cast<std::ptrdiff_t>(at);
      part.insert(
          part.end(), from,
          from + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(window.width) * channels));
    }
    take(frame,
         {.width = static_cast<double>(window.width), .height = static_cast<double>(window.height)},
         {part, window.width, window.height, image.channels});
  }
  return label;
}

std::int64_t ImageDataset::stored_bytes(std::int64_t index) const {
  std::vector<std::uint8_t> pixels(static_cast<std::size_t>(shape().bytes() * frames()));
  static_cast<void>(read(index, pixels));
  return std::ssize(pixels);
}

std::int64_t ImageDataset::decode_only(std::int64_t index, std::int64_t epoch) const {
  DecodeRequest request = {.min_side = shape().height};
  if (cuts_windows()) {
    request = window_request(index, epoch);
  } else {
    request.window = [](int width, int height) { return ImageWindow{0, 0, width, height}; };
  }
  std::int64_t bytes = 0;
  static_cast<void>(read_parts(index, request, [&](int, const ImagePart&, const ImageView& image) {
    bytes += std::ssize(image.pixels);
  }));
  return bytes;
}

bool ImageDataset::cuts_windows() const { return choices_ != nullptr && choices_->windows(); }

DecodeRequest ImageDataset::window_request(std::int64_t sample, std::int64_t epoch) const {
  return {.window = [this, sample, epoch](
                        int width,
                        int height) { return choices_->window(epoch, sample, width, height); },
          .min_side = choices_->side()};
}

/// Sample `index` with the random choices of sample `choices_of`.
int ImageDataset::draw(std::int64_t index, std::int64_t choices_of, std::int64_t epoch,
                       std::span<std::uint8_t> pixels) const {
  if (!cuts_windows()) return read(index, pixels);
  return read_parts(index, window_request(choices_of, epoch),
                    [&](int frame, const ImagePart& part, const ImageView& view) {
                      resize_part(view, part, choices_->side(), choices_->filter(),
                                  frame_of(pixels, frame, batch_shape()));
                    });
}

void ImageDataset::operate(std::int64_t choices_of, std::int64_t epoch,
                           std::span<std::uint8_t> pixels) const {
  const ImageShape image = batch_shape();
  for (int frame = 0; frame < frames(); ++frame) {
    choices_->operate(epoch, choices_of, frame_of(pixels, frame, image), image.width, image.height,
                      image.channels);
  }
}

bool ImageDataset::add_images(std::int64_t index, std::int64_t epoch,
                              std::span<std::uint8_t> pixels, std::vector<StoredImage>& files,
                              std::vector<UnitImage>& images) const {
  const bool windows = cuts_windows();
  for (int frame = 0; frame < frames(); ++frame) {
    std::optional<StoredImage> file = stored(index, frame);
    if (!file) return false;
    StoredImage& own = files.emplace_back(*std::move(file));
    if (!own.owned.empty()) own.bytes = own.owned;
    const std::optional<JpegSize> size = unit_jpeg(own.bytes);
    if (!size) return false;
    const ImageWindow window = windows ? choices_->window(epoch, index, size->width, size->height)
                                       : ImageWindow{0, 0, size->width, size->height};
    images.push_back({.bytes = own.bytes,
                      .width = size->width,
                      .height = size->height,
                      .window = window,
                      .axes = windows
                                  ? part_axes(0, 0, window.width, window.height, choices_->side())
                                  : square_axes(size->width, size->height, *square()),
                      .pixels = frame_of(pixels, frame, batch_shape())});
  }
  return true;
}

std::vector<std::optional<int>> ImageDataset::decode_ahead(
    HostBatch& batch, std::int64_t row, std::span<const std::int64_t> indices) const {
  std::vector<std::optional<int>> labels(indices.size());
  if (units_ == nullptr || square() == nullptr) return labels;
  std::vector<StoredImage> files;  // reserved, as `images` names its strings
  files.reserve(indices.size() * static_cast<std::size_t>(frames()));
  std::vector<UnitImage> images;
  const auto each = static_cast<std::size_t>(frames());
  std::vector<std::size_t> taken;  // rows of `images`, `each` a row
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] < 0) continue;
    const auto pixels = row_of<std::uint8_t>(batch.pixels, row + static_cast<std::int64_t>(i),
                                             batch_shape().bytes() * frames());
    bool all = false;
    try {
      all = add_images(indices[i], batch.epoch, pixels, files, images);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::data) throw;  // else fill_row() handles it
    }
    if (all) {
      labels[i] = files.back().label;
      taken.push_back(i);
    }
    images.resize(taken.size() * each);
  }
  const Interpolation filter = cuts_windows() ? choices_->filter() : square()->filter;
  if (units_->decode(images, filter)) return labels;
  // One by one, so that which ones the units decode does not depend on their neighbours.
  for (std::size_t k = 0; k < taken.size(); ++k) {
    if (!units_->decode(std::span(images).subspan(k * each, each), filter))
      labels[taken[k]] = std::nullopt;
  }
  return labels;
}

void ImageDataset::fill_rows(HostBatch& batch, std::int64_t& row,
                             std::span<const std::int64_t> indices) const {
  const std::vector<std::optional<int>> labels = decode_ahead(batch, row, indices);
  for (std::size_t i = 0; i < indices.size(); ++i, ++row)
    fill_row(batch, row, indices[i], labels[i]);
}

void ImageDataset::fill(HostBatch& batch, std::int64_t row, std::int64_t index) const {
  fill_row(batch, row, index, {});
}

void ImageDataset::fill_row(HostBatch& batch, std::int64_t row, std::int64_t index,
                            std::optional<int> label) const {
  const auto pixels = row_of<std::uint8_t>(batch.pixels, row, batch_shape().bytes() * frames());
  for (std::int64_t i = 0; index >= 0 && !label; ++i) {
    try {
      label = draw((index + i) % size(), index, batch.epoch, pixels);
    } catch (const Error& error) {
      if (damaged_ == DamagedImage::stop || error.kind() != ErrorKind::data) throw;
      named_->name(error, damaged_ == DamagedImage::replace
                              ? "the image after it takes its place"
                              : "it does not count in the evaluation");
      if (damaged_ == DamagedImage::blank) break;
      if (i == std::min(kMaxReplacements, size() - 1)) {
        throw Error(ErrorKind::data,
                    fmt::format("{} images in a row cannot be used, the last one because: {}",
                                i + 1, error.what()),
                    error.hint());
      }
    }
  }
  if (!label) std::ranges::fill(pixels, std::uint8_t{0});
  if (label && choices_ != nullptr && choices_->operates()) operate(index, batch.epoch, pixels);
  batch.labels.mutable_data_ptr<std::int64_t>()[row] = label.value_or(0);
  batch.weights.mutable_data_ptr<float>()[row] = label ? 1.0F : 0.0F;
  batch.samples.mutable_data_ptr<std::int64_t>()[row] = index;
  if (batch.erased.defined())
    put(index < 0 ? ImageWindow{} : choices_->erased(batch.epoch, index), batch.erased, row);
  if (batch.mixed_shares.defined()) {
    const auto mix = index < 0 ? ImageChoices::Mix{} : choices_->mix(batch.epoch, index);
    batch.mixed_shares.mutable_data_ptr<float>()[row] = mix.share;
    put(mix.window, batch.mixed_windows, row);
    batch.label_shares.mutable_data_ptr<float>()[row] = mix.label_share;
  }
}

/// The label with the larger share comes first, as it is the one that counts as right.
void ImageDataset::finish(HostBatch& batch) const {
  if (!batch.mixed_shares.defined()) return;
  const std::int64_t rows = batch.labels.size(0);
  const auto labels = row_of<std::int64_t>(batch.labels, 0, rows);
  const auto samples = row_of<std::int64_t>(batch.samples, 0, rows);
  const auto second = row_of<std::int64_t>(batch.second_labels, 0, rows);
  const auto shares = row_of<float>(batch.label_shares, 0, rows);
  const std::vector<std::int64_t> own(labels.begin(), labels.end());
  const auto valid = static_cast<std::size_t>(
      std::ranges::count_if(samples, [](std::int64_t sample) { return sample >= 0; }));
  for (std::size_t row = 0; row < own.size(); ++row) {
    second[row] = row < valid ? own[valid - 1 - row] : own[row];
    if (shares[row] >= 0.5F) continue;
    std::swap(labels[row], second[row]);
    shares[row] = 1 - shares[row];
  }
}

}  // namespace dstrain
