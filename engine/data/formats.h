#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/data/dataset.h"
#include "engine/data/image_resize.h"

/// The readers behind open_images(), one .cpp each. All throw Error{data} that names file and
/// record.
namespace dstrain::formats {

/// Handwritten digits, 8 x 8 grey: those in the binary when `path` is empty, else a file in the
/// same format.
std::unique_ptr<ImageDataset> open_digits(const std::filesystem::path& path, Split split);

/// Binary version of CIFAR-10 or CIFAR-100 (fine labels) in a folder, memory-mapped.
/// https://www.cs.toronto.edu/~kriz/cifar.html
std::unique_ptr<ImageDataset> open_cifar(const std::filesystem::path& folder, int classes,
                                         Split split);

/// Noise that costs no decoding; a pure function of (seed, split, index). `size` images, square.
std::unique_ptr<ImageDataset> open_random(std::int64_t size, int image_size, std::int64_t seed,
                                          Split split);
inline constexpr int kRandomClasses = 101;

/// Labelled image files, found but not yet read.
struct ImageList {
  struct Item {
    std::string file;  ///< relative to `root`
    int label;
  };
  std::filesystem::path root;
  int classes = 0;
  std::vector<Item> items;
};
ImageList list_image_folder(const std::filesystem::path& root, Split split);
ImageList list_food101(const std::filesystem::path& root, Split split);

/// Decodes each file when it is read and makes it square, RGB. `jpeg_scaling`: a large JPEG is
/// decoded at a fraction of its size that is enough.
std::unique_ptr<ImageDataset> open_image_files(ImageList list, const SquareResize& resize,
                                               bool jpeg_scaling);

}  // namespace dstrain::formats
