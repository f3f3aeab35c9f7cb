#include "engine/data/dataset.h"

#include "engine/base/error.h"
#include "engine/data/formats.h"
#include "engine/data/images/image_choices.h"

namespace dstrain {
namespace {

constexpr const formats::ImageFormat* kImageFormats[] = {
    &formats::kDigits,  &formats::kCifar10, &formats::kCifar100,    &formats::kImageFolder,
    &formats::kFood101, &formats::kFrames,  &formats::kRandomImages};

/// Null of a data set of text.
const formats::ImageFormat* image_format(DatasetName name) {
  for (const formats::ImageFormat* format : kImageFormats) {
    if (format->name == name) return format;
  }
  return nullptr;
}

}  // namespace

void Dataset::fill_rows(HostBatch& batch, std::int64_t& row,
                        std::span<const std::int64_t> indices) const {
  for (const std::int64_t index : indices) {
    fill(batch, row, index);
    ++row;
  }
}

std::unique_ptr<ImageDataset> open_images(const DataConfig& data, Split split, int image_size,
                                          std::int64_t seed, ProgressSink* progress) {
  DSTRAIN_CHECK(image_size > 0, "open_images needs the model's image size");
  if (const formats::ImageFormat* format = image_format(data.name)) {
    auto images = format->open(data, split, image_size, seed, progress);
    if (split == Split::train) images->augment_with(ImageChoices(data, image_size, seed));
    return images;
  }
  throw Error(ErrorKind::usage, "data.name is a data set of text, but the model takes images",
              "use a language model, or a data set of images");
}

ImageShape stored_shape(const DataConfig& data, int image_size) {
  const formats::ImageFormat* format = image_format(data.name);
  return format == nullptr ? ImageShape{} : format->shape(data, image_size);
}

DatasetFacts dataset_facts(const DataConfig& data, int image_size) {
  const formats::ImageFormat* format = image_format(data.name);
  if (format == nullptr) return {};  // text has no classes
  DatasetFacts facts = format->facts(data);
  facts.shape = format->shape(data, image_size);
  return facts;
}

}  // namespace dstrain
