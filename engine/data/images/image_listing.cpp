#include "engine/data/images/image_listing.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "engine/base/input_file.h"
#include "engine/base/json.h"
#include "engine/data/text/test_folders.h"

namespace dstrain::formats {
namespace {

namespace fs = std::filesystem;

constexpr std::array kExtensions = {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp"};

std::string extension_of(const fs::path& path) {
  std::string extension = path.extension().string();
  std::ranges::transform(extension, extension.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return extension;
}

/// Settings of file managers, and the forks that macOS puts beside files: no data.
bool is_hidden(const std::string& name) { return name.starts_with('.') || name == "__MACOSX"; }

}  // namespace

bool is_image_name(const fs::path& file) {
  return std::ranges::find(kExtensions, extension_of(file)) != kExtensions.end();
}

void OtherFiles::add(const fs::path& file) {
  if (first.empty()) first = file.string();
  ++by_extension[extension_of(file)];
}

void OtherFiles::add(const OtherFiles& more) {
  if (first.empty()) first = more.first;
  for (const auto& [extension, count] : more.by_extension) by_extension[extension] += count;
}

std::string OtherFiles::describe() const {
  constexpr std::size_t kMaxNamed = 8;
  std::string text;
  std::size_t named = 0;
  std::int64_t more = 0;
  for (const auto& [extension, count] : by_extension) {
    if (named++ >= kMaxNamed) {
      more += count;
      continue;
    }
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count,
                        extension.empty() ? "without an extension" : shown_text(extension, 20));
  }
  return more > 0 ? fmt::format("{}, {} others", text, more) : text;
}

std::string besides(const OtherFiles& others) {
  if (others.by_extension.empty()) return "";
  return fmt::format(" (it holds {})", others.describe());
}

std::vector<std::string> list_classes(const fs::path& root) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(root)) {
    const std::string name = entry.path().filename().string();
    if (is_hidden(name)) continue;
    // Left out without a word, a link to nothing would be a class fewer.
    if (entry.is_symlink() && !fs::exists(entry.path()))
      throw Error(ErrorKind::data, entry.path().string() + " is a link to nothing",
                  "mend the link, or remove it");
    if (entry.is_directory()) names.push_back(name);
  }
  std::ranges::sort(names);
  if (names.empty()) {
    throw Error(ErrorKind::data,
                fmt::format("{} holds no folder; it needs one per class", root.string()),
                "expected ROOT/train/CLASS/*.jpg and ROOT/test/CLASS/*.jpg, or ROOT/CLASS/*.jpg");
  }
  return names;
}

std::vector<std::string> list_images(const fs::path& root, const std::string& name,
                                     OtherFiles& others) {
  std::vector<std::string> files;
  const fs::recursive_directory_iterator end;
  for (fs::recursive_directory_iterator at(root / name); at != end; ++at) {
    const fs::directory_entry& entry = *at;
    std::error_code unknown;  // of what cannot be looked up, such as a circle of links
    if (is_hidden(entry.path().filename().string())) {
      at.disable_recursion_pending();
      continue;
    }
    if (entry.is_directory(unknown)) continue;
    if (!is_image_name(entry.path())) {
      others.add(entry.path());
      continue;
    }
    // A pipe or a link to nothing: left out, it would change what an epoch is.
    if (!entry.is_regular_file(unknown)) (void)open_input_file(entry.path());
    files.push_back(entry.path().lexically_relative(root).string());
  }
  std::ranges::sort(files);
  return files;
}

fs::path find_test_folder(const fs::path& root, const char* hint) {
  for (const char* name : kTestFolders) {
    if (path_kind(root / name) == PathKind::folder) return root / name;
  }
  throw Error(ErrorKind::data,
              fmt::format("{} has a folder 'train' but none of {}", root.string(),
                          fmt::join(kTestFolders, ", ")),
              hint);
}

std::vector<std::string> list_clips(const fs::path& root, const std::string& name) {
  std::vector<std::string> clips;
  for (const auto& entry : fs::directory_iterator(root / name)) {
    if (entry.is_directory() && !is_hidden(entry.path().filename().string()))
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

void fail_empty_class(const fs::path& folder, const OtherFiles& others) {
  throw Error(ErrorKind::data,
              fmt::format("{} holds no JPEG, PNG or WebP file{}", folder.string(), besides(others)),
              "put the images of the class there, or remove the folder");
}

}  // namespace dstrain::formats
