#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/data/formats.h"

/// What the readers of folders share: names, sorted. Error{data} names what does not fit.
namespace dstrain::formats {

/// Names of the folders in `root`, in byte order, but those that start with a dot and __MACOSX,
/// which archivers leave.
[[nodiscard]] std::vector<std::string> list_classes(const std::filesystem::path& root);
/// Folders in root/name, relative to root, in the order of their names.
[[nodiscard]] std::vector<std::string> list_clips(const std::filesystem::path& root,
                                                  const std::string& name);
/// Whether a file is called as JPEG, PNG and WebP files are, in any case.
[[nodiscard]] bool is_image_name(const std::filesystem::path& file);
/// Image files below root/name at any depth, relative to root, in byte order. Other files go into
/// `others`, but those that start with a dot and what is in folders that list_classes() leaves out.
[[nodiscard]] std::vector<std::string> list_images(const std::filesystem::path& root,
                                                   const std::string& name, OtherFiles& others);
/// root/test, root/val or root/validation; Error{data} with `hint` where there is none.
[[nodiscard]] std::filesystem::path find_test_folder(const std::filesystem::path& root,
                                                     const char* hint);
/// The folders in `folder` with their places among `classes`, those of `training`.
[[nodiscard]] std::vector<std::pair<std::string, int>> labelled_folders(
    const std::filesystem::path& training, const std::vector<std::string>& classes,
    const std::filesystem::path& folder);
/// " (it holds 3 .bmp)"; empty where there are no others.
[[nodiscard]] std::string besides(const OtherFiles& others);
[[noreturn]] void fail_empty_class(const std::filesystem::path& folder, const OtherFiles& others);

/// What `make` lists; Error{data} where it lists nothing, or a folder cannot be read.
template <class Make>
[[nodiscard]] ImageList listing(const Make& make) {
  try {
    ImageList list = make();
    if (list.items.empty()) throw Error(ErrorKind::data, list.root.string() + " holds no images");
    return list;
  } catch (const std::filesystem::filesystem_error& error) {
    throw Error(ErrorKind::data,
                "cannot list " + error.path1().string() + ": " + error.code().message());
  }
}

}  // namespace dstrain::formats
