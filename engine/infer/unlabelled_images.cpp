#include "engine/infer/unlabelled_images.h"

#include <algorithm>
#include <filesystem>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/input_file.h"
#include "engine/data/batch_tensors.h"
#include "engine/data/images/image_decode.h"
#include "engine/data/images/image_listing.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxFileBytes = std::uint64_t{256} << 20;

/// As PIL converts RGB to "L": ITU-R 601-2 in 16 bits.
std::uint8_t grey_of(const std::uint8_t* rgb) {
  return static_cast<std::uint8_t>((rgb[0] * 19595U + rgb[1] * 38470U + rgb[2] * 7471U + 0x8000U) >>
                                   16U);
}

}  // namespace

HostBatch UnlabelledImages::allocate(std::int64_t rows, bool pinned) const {
  HostBatch batch;
  batch.pixels = host_tensor({rows, resize_.input, resize_.input, channels_}, at::kByte, pinned);
  batch.labels = host_tensor({rows}, at::kLong, pinned);
  batch.weights = host_tensor({rows}, at::kFloat, pinned);
  batch.samples = host_tensor({rows}, at::kLong, pinned);
  return batch;
}

void UnlabelledImages::read(const std::string& file, std::span<std::uint8_t> pixels) const {
  const std::string bytes = read_file(file, kMaxFileBytes);
  const RgbImage image = decode_part(bytes, {.large = &large_}, file).image;
  if (channels_ == 3) return resize_to_middle(image, resize_, pixels);
  std::vector<std::uint8_t> rgb(pixels.size() * 3);
  resize_to_middle(image, resize_, rgb);
  for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = grey_of(&rgb[3 * i]);
}

void UnlabelledImages::fill(HostBatch& batch, std::int64_t row, std::int64_t index) const {
  const std::int64_t bytes = std::int64_t{resize_.input} * resize_.input * channels_;
  const auto pixels = row_of<std::uint8_t>(batch.pixels, row, bytes);
  bool whole = false;
  if (index >= 0) {
    try {
      read(files_.at(static_cast<std::size_t>(index)), pixels);
      whole = true;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::data) throw;
      const std::lock_guard lock(mutex_);
      errors_[index] = error.what();
    }
  }
  if (!whole) std::ranges::fill(pixels, std::uint8_t{0});
  batch.labels.mutable_data_ptr<std::int64_t>()[row] = 0;
  batch.weights.mutable_data_ptr<float>()[row] = whole ? 1.0F : 0.0F;
  batch.samples.mutable_data_ptr<std::int64_t>()[row] = index;
}

std::string UnlabelledImages::error(std::int64_t index) const {
  const std::lock_guard lock(mutex_);
  return errors_.at(index);
}

std::vector<std::string> find_image_files(const std::vector<std::string>& given) {
  std::vector<std::string> files;
  for (const std::string& name : given) {
    const PathKind kind = path_kind(name, ErrorKind::usage);
    if (kind == PathKind::nothing)
      throw Error(ErrorKind::usage, "there is no file or folder " + shown_path(name));
    if (kind != PathKind::folder) {
      files.push_back(name);
      continue;
    }
    formats::OtherFiles others;
    std::vector<std::string> found;
    try {
      found = formats::list_images(name, "", others);
    } catch (const fs::filesystem_error& error) {
      throw Error(ErrorKind::data,
                  "cannot list " + error.path1().string() + ": " + error.code().message());
    }
    if (found.empty())
      throw Error(ErrorKind::data,
                  name + " holds no JPEG, PNG or WebP file" + formats::besides(others),
                  "files of other names can be given one by one: what they hold counts");
    for (const std::string& file : found) files.push_back((fs::path(name) / file).string());
  }
  return files;
}

}  // namespace dstrain
