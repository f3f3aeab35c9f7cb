#include "engine/data/image_listing.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "engine/base/input_file.h"

namespace dstrain::formats {
namespace {

namespace fs = std::filesystem;

constexpr std::array kTestNames = {"test", "val", "validation"};

bool is_image(const fs::path& path) {
  std::string extension = path.extension().string();
  std::ranges::transform(extension, extension.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return extension == ".jpg" || extension == ".jpeg" || extension == ".png";
}

}  // namespace

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

std::vector<std::string> list_clips(const fs::path& root, const std::string& name) {
  std::vector<std::string> clips;
  for (const auto& entry : fs::directory_iterator(root / name)) {
    if (entry.is_directory() && !entry.path().filename().string().starts_with('.'))
      clips.push_back(entry.path().lexically_relative(root).string());
  }
  std::ranges::sort(clips);
  return clips;
}

std::vector<std::pair<std::string, int>> labelled_folders(const fs::path& training,
                                                          const std::vector<std::string>& classes,
                                                          const fs::path& folder) {
  std::vector<std::pair<std::string, int>> folders;
  for (const auto& name : list_classes(folder)) {
    const auto found = std::ranges::lower_bound(classes, name);
    if (found == classes.end() || *found != name) {
      throw Error(ErrorKind::data, fmt::format("{} is a class that {} does not have",
                                               (folder / name).string(), training.string()));
    }
    folders.emplace_back(name, static_cast<int>(found - classes.begin()));
  }
  return folders;
}

void fail_empty_class(const fs::path& folder) {
  throw Error(ErrorKind::data, fmt::format("{} holds no .jpg, .jpeg or .png file", folder.string()),
              "put the images of the class there, or remove the folder");
}

}  // namespace dstrain::formats
