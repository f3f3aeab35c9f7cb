#include "engine/data/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/base/error.h"
#include "engine/data/formats.h"
#include "engine/data/images/image_choices.h"
#include "engine/data/images/image_subset.h"
#include "engine/data/mixed_sets.h"
#include "engine/data/text/progress_sink.h"
#include "engine/recipe/datasets.h"

namespace dstrain {
namespace {

constexpr const formats::ImageFormat* kImageFormats[] = {
    &formats::kDigits,  &formats::kCifar10, &formats::kCifar100,     &formats::kImageFolder,
    &formats::kFood101, &formats::kFrames,  &formats::kRandomImages, &formats::kWebDataset};

/// Null of a data set of text.
const formats::ImageFormat* image_format(DatasetName name) {
  for (const formats::ImageFormat* format : kImageFormats) {
    if (format->name == name) return format;
  }
  return nullptr;
}

bool is_mixed(const DataConfig& data) {
  return data.name == DatasetName::mixture && !data.mixture.empty();
}

bool takes_subset(const DataConfig& data) {
  return data.subset > 0 && reads(dataset_row(data.name), "data.subset");
}

std::unique_ptr<ImageDataset> cut(std::unique_ptr<ImageDataset> images, const DataConfig& data,
                                  Split split, std::int64_t seed, ProgressSink* progress) {
  if (data.subset < images->size()) return subset_of(std::move(images), data.subset, seed);
  if (progress != nullptr && data.subset > images->size())
    progress->note(fmt::format("data, {}: {} images, fewer than data.subset ({})",
                               split == Split::train ? "train" : "test", images->size(),
                               data.subset));
  return images;
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
  if (data.name == DatasetName::mixture) {
    auto images = mix(each_set(data, progress,
                               [&](const DataConfig& one, ProgressSink* own) {
                                 return open_images(one, split, image_size, seed, own);
                               }),
                      data, seed);
    if (split == Split::train) images->augment_with(ImageChoices(data, image_size, seed));
    return images;
  }
  if (const formats::ImageFormat* format = image_format(data.name)) {
    auto images = format->open(data, split, image_size, seed, progress);
    if (takes_subset(data)) images = cut(std::move(images), data, split, seed, progress);
    if (split == Split::train) images->augment_with(ImageChoices(data, image_size, seed));
    return images;
  }
  throw Error(ErrorKind::usage, "data.name is a data set of text, but the model takes images",
              "use a language model, or a data set of images");
}

bool always_packed(const DataConfig& data) {
  return std::ranges::any_of(sets_of(data), [](const DataConfig& one) {
    const formats::ImageFormat* format = image_format(one.name);
    return format != nullptr && format->packed != nullptr && format->packed(one);
  });
}

ImageShape stored_shape(const DataConfig& data, int image_size) {
  if (is_mixed(data)) return stored_shape(sets_of(data).front(), image_size);
  const formats::ImageFormat* format = image_format(data.name);
  return format == nullptr ? ImageShape{} : format->shape(data, image_size);
}

DatasetFacts dataset_facts(const DataConfig& data, int image_size) {
  if (is_mixed(data)) {  // members agree, or do not open
    DatasetFacts facts = dataset_facts(sets_of(data).front(), image_size);
    facts.train_size = 0;
    return facts;
  }
  const formats::ImageFormat* format = image_format(data.name);
  if (format == nullptr) return {};  // text has no classes
  DatasetFacts facts = format->facts(data);
  facts.shape = format->shape(data, image_size);
  if (takes_subset(data) && facts.train_size > 0)
    facts.train_size = std::min<std::int64_t>(facts.train_size, data.subset);
  return facts;
}

}  // namespace dstrain
