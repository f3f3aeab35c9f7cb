#include "engine/data/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "engine/base/error.h"
#include "engine/base/input_file.h"
#include "engine/data/formats.h"

namespace dstrain {
namespace {

constexpr int kDigitsSide = 8;
constexpr int kCifarSide = 32;
constexpr std::int64_t kCifarTrain = 50000;
constexpr std::int64_t kDigitsTrain = 1437;

/// Side of the square that images of files become; 256 for 224 leaves the usual room for a random
/// crop.
int square_side(const DataConfig& data, int image_size) {
  if (data.resize_side > 0) return data.resize_side;
  return data.resize == Fit::stretch ? image_size
                                     : static_cast<int>(std::lround(image_size * 8.0 / 7.0));
}

std::unique_ptr<ImageDataset> open_files(formats::ImageList list, const DataConfig& data,
                                         int image_size) {
  const int side = square_side(data, image_size);
  return formats::open_image_files(std::move(list),
                                   {.fit = data.resize,
                                    .side = side,
                                    .input = std::min(side, image_size),
                                    .filter = data.interpolation},
                                   data.jpeg_scaling);
}

std::filesystem::path required_path(const DataConfig& data, const char* what) {
  if (data.path.empty()) {
    throw Error(ErrorKind::usage, fmt::format("data.path is empty; it must name {}", what),
                "set data.path in the recipe or with --set data.path=...");
  }
  if (path_kind(data.path) != PathKind::folder) {
    throw Error(ErrorKind::data,
                fmt::format("data.path '{}' is not a folder; it must name {}", data.path, what),
                "put the data there, or name its folder with --set data.path=... (recipes read "
                "DSTRAIN_DATA); "
                "recipes/vit/*_random_* need no data");
  }
  return data.path;
}

}  // namespace

std::unique_ptr<ImageDataset> open_images(const DataConfig& data, Split split, int image_size,
                                          std::int64_t seed) {
  DSTRAIN_CHECK(image_size > 0, "open_images needs the model's image size");
  switch (data.name) {
    case DatasetName::digits:
      return formats::open_digits(data.path, split);
    case DatasetName::cifar10:
      return formats::open_cifar(
          required_path(data,
                        "the folder with data_batch_1.bin ... data_batch_5.bin, test_batch.bin"),
          10, split);
    case DatasetName::cifar100:
      return formats::open_cifar(required_path(data, "the folder with train.bin and test.bin"), 100,
                                 split);
    case DatasetName::images:
      return open_files(formats::list_image_folder(
                            required_path(data, "the folder with one folder per class"), split),
                        data, image_size);
    case DatasetName::food101:
      return open_files(
          formats::list_food101(required_path(data, "the folder with images/ and meta/"), split),
          data, image_size);
    case DatasetName::random:
      return formats::open_random(
          split == Split::train ? data.samples : std::max(1, data.samples / 10), image_size, seed,
          split);
    case DatasetName::squad:
    case DatasetName::metamathqa:
    case DatasetName::jsonl:
      throw Error(ErrorKind::usage, "data.name is a data set of text, but the model takes images",
                  "use a language model, or a data set of images");
  }
  DSTRAIN_CHECK(false, "unknown data set");
}

ImageShape stored_shape(const DataConfig& data, int image_size) {
  switch (data.name) {
    case DatasetName::digits:
      return {kDigitsSide, kDigitsSide, 1};
    case DatasetName::cifar10:
    case DatasetName::cifar100:
      return {kCifarSide, kCifarSide, 3};
    case DatasetName::random:
      return {image_size, image_size, 3};
    case DatasetName::images:
    case DatasetName::food101: {
      const int side = square_side(data, image_size);
      return {side, side, 3};
    }
    case DatasetName::squad:
    case DatasetName::metamathqa:
    case DatasetName::jsonl:
      return {};
  }
  DSTRAIN_CHECK(false, "unknown data set");
}

DatasetFacts dataset_facts(const DataConfig& data, int image_size) {
  const ImageShape shape = stored_shape(data, image_size);
  switch (data.name) {
    case DatasetName::digits:
      return {10, shape, data.path.empty() ? kDigitsTrain : 0};
    case DatasetName::cifar10:
      return {10, shape, kCifarTrain};
    case DatasetName::cifar100:
      return {100, shape, kCifarTrain};
    case DatasetName::random:
      return {formats::kRandomClasses, shape, data.samples};
    case DatasetName::squad:
    case DatasetName::metamathqa:
    case DatasetName::jsonl:
      return {};  // text has no classes
    case DatasetName::images:
    case DatasetName::food101: {
      if (path_kind(data.path) != PathKind::folder) return {0, shape, 0};
      const auto list = data.name == DatasetName::images
                            ? formats::list_image_folder(data.path, Split::train)
                            : formats::list_food101(data.path, Split::train);
      return {list.classes, shape, static_cast<std::int64_t>(list.items.size())};
    }
  }
  DSTRAIN_CHECK(false, "unknown data set");
}

}  // namespace dstrain
