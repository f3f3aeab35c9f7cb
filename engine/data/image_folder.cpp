#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "engine/base/error.h"
#include "engine/base/input_file.h"
#include "engine/data/formats.h"

namespace dstrain::formats {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kTestEvery = 10;
constexpr std::array kTestNames = {"test", "val", "validation"};

bool is_image(const fs::path& path) {
  std::string extension = path.extension().string();
  std::ranges::transform(extension, extension.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return extension == ".jpg" || extension == ".jpeg" || extension == ".png";
}

/// Names of the folders in `root`, sorted; those that start with a dot are not meant as classes.
std::vector<std::string> list_classes(const fs::path& root) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(root)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_directory() && !name.starts_with('.')) names.push_back(name);
  }
  std::ranges::sort(names);
  if (names.empty()) {
    throw Error(ErrorKind::data,
                fmt::format("{} holds no folder; it needs one per class", root.string()),
                "expected ROOT/train/CLASS/*.jpg and ROOT/test/CLASS/*.jpg, or ROOT/CLASS/*.jpg");
  }
  return names;
}

/// Image files below root/name, relative to root, sorted.
std::vector<std::string> list_images(const fs::path& root, const std::string& name) {
  std::vector<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(root / name)) {
    std::error_code unknown;  // of what cannot be looked up, such as a circle of links
    if (!is_image(entry.path()) || entry.is_directory(unknown)) continue;
    // A pipe or a link to nothing: left out, it would change what an epoch is.
    if (!entry.is_regular_file(unknown)) (void)open_input_file(entry.path());
    files.push_back(entry.path().lexically_relative(root).string());
  }
  std::ranges::sort(files);
  return files;
}

fs::path find_test_folder(const fs::path& root) {
  for (const char* name : kTestNames) {
    if (path_kind(root / name) == PathKind::folder) return root / name;
  }
  throw Error(
      ErrorKind::data,
      fmt::format("{} has a folder 'train' but none of {}", root.string(), "test, val, validation"),
      "put the test images into ROOT/test/CLASS/");
}

/// ROOT/train and ROOT/test: the training folder says which classes there are.
ImageList list_split_folders(const fs::path& root, Split split) {
  const auto classes = list_classes(root / "train");
  const fs::path folder = split == Split::train ? root / "train" : find_test_folder(root);
  ImageList list{folder, static_cast<int>(classes.size()), {}};
  for (const auto& name : list_classes(folder)) {
    const auto found = std::ranges::lower_bound(classes, name);
    if (found == classes.end() || *found != name) {
      throw Error(ErrorKind::data,
                  fmt::format("{} is a class that {} does not have", (folder / name).string(),
                              (root / "train").string()));
    }
    const auto files = list_images(folder, name);
    if (files.empty() && split == Split::train) {
      throw Error(ErrorKind::data,
                  fmt::format("{} holds no .jpg, .jpeg or .png file", (folder / name).string()));
    }
    for (const auto& file : files) {
      list.items.push_back({file, static_cast<int>(found - classes.begin())});
    }
  }
  return list;
}

/// ROOT/CLASS: the first of each ten files of a class, by name, is test data.
ImageList list_single_folder(const fs::path& root, Split split) {
  const auto classes = list_classes(root);
  ImageList list{root, static_cast<int>(classes.size()), {}};
  for (std::size_t label = 0; label < classes.size(); ++label) {
    const auto files = list_images(root, classes[label]);
    if (files.size() < 2) {
      throw Error(
          ErrorKind::data,
          fmt::format("{} holds {} .jpg, .jpeg or .png files; a class needs 2, one to test with",
                      (root / classes[label]).string(), files.size()));
    }
    for (std::size_t i = 0; i < files.size(); ++i) {
      const bool test = i % kTestEvery == 0;
      if (test == (split == Split::test)) list.items.push_back({files[i], static_cast<int>(label)});
    }
  }
  return list;
}

ImageList list_image_folder(const fs::path& root, Split split) {
  try {
    auto list = path_kind(root / "train") == PathKind::folder ? list_split_folders(root, split)
                                                              : list_single_folder(root, split);
    if (list.items.empty()) {
      throw Error(ErrorKind::data, fmt::format("{} holds no images", list.root.string()));
    }
    return list;
  } catch (const fs::filesystem_error& error) {
    throw Error(ErrorKind::data,
                fmt::format("cannot list {}: {}", error.path1().string(), error.code().message()));
  }
}

std::unique_ptr<ImageDataset> open_image_folder(const DataConfig& data, Split split, int image_size,
                                                std::int64_t) {
  const fs::path root = required_folder(data, "the folder with one folder per class");
  return open_image_files(list_image_folder(root, split), data, split, image_size);
}

}  // namespace

const ImageFormat kImageFolder = {
    .name = DatasetName::images,
    .open = open_image_folder,
    .shape = square_shape,
    .facts = [](const DataConfig& data) { return facts_of_files(data, list_image_folder); },
};

}  // namespace dstrain::formats
