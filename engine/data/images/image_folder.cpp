#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/input_file.h"
#include "engine/data/formats.h"
#include "engine/data/images/image_listing.h"
#include "engine/data/images/parquet_images.h"

namespace dstrain::formats {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kTestEvery = 10;
constexpr const char* kNoTest =
    "put the test images into ROOT/test/CLASS/, or name ROOT/train in data.path: the first of "
    "each ten files of a class is then for evaluation";

/// ROOT/train and ROOT/test: the training folder says which classes there are.
ImageList list_split_folders(const fs::path& root, Split split) {
  const auto classes = list_classes(root / "train");
  const fs::path folder = split == Split::train ? root / "train" : find_test_folder(root, kNoTest);
  ImageList list{
      .root = folder, .classes = static_cast<int>(classes.size()), .class_names = classes};
  for (const auto& [name, label] : labelled_folders(root / "train", classes, folder)) {
    OtherFiles others;
    const auto files = list_images(folder, name, others);
    if (files.empty() && split == Split::train) fail_empty_class(folder / name, others);
    list.others.add(others);
    for (const auto& file : files) list.items.push_back({file, label});
  }
  return list;
}

/// Train/ beside Test/ are no two classes.
void refuse_split_names(const fs::path& root, const std::vector<std::string>& classes) {
  constexpr std::array kTraining = {"train", "training", "train_set", "training_set"};
  constexpr std::array kTesting = {"test", "testing", "test_set", "val", "validation", "valid"};
  std::string train, test;
  for (const std::string& name : classes) {
    std::string lower = name;
    std::ranges::transform(lower, lower.begin(), [](char c) {
      return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    });
    if (std::ranges::find(kTraining, lower) != kTraining.end()) train = name;
    if (std::ranges::find(kTesting, lower) != kTesting.end()) test = name;
  }
  if (train.empty() || test.empty()) return;
  throw Error(ErrorKind::data,
              fmt::format("{} has the folders '{}' and '{}', which would be classes", root.string(),
                          train, test),
              "call them train and test, with a folder for each class in both");
}

/// ROOT/CLASS: the first of each ten files of a class, by name, is test data.
ImageList list_single_folder(const fs::path& root, Split split) {
  const auto classes = list_classes(root);
  refuse_split_names(root, classes);
  ImageList list{.root = root, .classes = static_cast<int>(classes.size()), .class_names = classes};
  for (std::size_t label = 0; label < classes.size(); ++label) {
    OtherFiles others;
    const auto files = list_images(root, classes[label], others);
    if (files.size() < 2) {
      throw Error(
          ErrorKind::data,
          fmt::format("{} holds {} JPEG, PNG or WebP files{}; a class needs 2, one to test with",
                      (root / classes[label]).string(), files.size(), besides(others)));
    }
    list.others.add(others);
    for (std::size_t i = 0; i < files.size(); ++i) {
      const bool test = i % kTestEvery == 0;
      if (test == (split == Split::test)) list.items.push_back({files[i], static_cast<int>(label)});
    }
  }
  return list;
}

ImageList list_image_folder(const fs::path& root, Split split) {
  return listing([&] {
    return path_kind(root / "train") == PathKind::folder ? list_split_folders(root, split)
                                                         : list_single_folder(root, split);
  });
}

std::unique_ptr<ImageDataset> open_image_folder(const DataConfig& data, Split split, int image_size,
                                                std::int64_t, ProgressSink* progress) {
  const fs::path root = required_folder(data, "the folder with one folder per class");
  if (holds_parquet_images(root)) return open_parquet_images(data, split, image_size, progress);
  refuse_label(data);
  return open_image_files(list_image_folder(root, split), data, split, image_size, progress);
}

}  // namespace

const ImageFormat kImageFolder = {
    .name = DatasetName::images,
    .open = open_image_folder,
    .shape = square_shape,
    .facts = [](const DataConfig& data) { return facts_of_files(data, list_image_folder); },
    .packed = [](const DataConfig& data) { return holds_parquet_images(data.path); },
};

}  // namespace dstrain::formats
