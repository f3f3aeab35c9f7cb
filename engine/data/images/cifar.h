#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/images/pack_source.h"

namespace dstrain::formats {

inline constexpr int kCifarSide = 32;
inline constexpr int kCifarPlane = kCifarSide * kCifarSide;
inline constexpr int kCifarChannels = 3;

/// CIFAR-10, or CIFAR-100 with one of its two kinds of labels.
struct CifarSet {
  int number;           ///< 10 or 100
  bool coarse = false;  ///< the 20 classes of CIFAR-100

  [[nodiscard]] int classes() const { return coarse ? 20 : number; }
};

/// The red, green and blue planes of an image as its pixels [height, width, 3].
void interleave_planes(const std::uint8_t* planes, std::uint8_t* pixels);

/// Files of the python version in `folder`, pickles; none where the first is not there.
[[nodiscard]] std::vector<std::filesystem::path> python_cifar_files(
    const std::filesystem::path& folder, const CifarSet& set, Split split);
/// The images of these files. Nothing of a pickle is executed; Error{data} names what is wrong.
[[nodiscard]] std::unique_ptr<PackSource> python_cifar(std::vector<std::filesystem::path> files,
                                                       const CifarSet& set);
/// Names of the classes that the folder's `meta` or `batches.meta` lists; none without it.
[[nodiscard]] std::vector<std::string> python_cifar_names(const std::filesystem::path& folder,
                                                          const CifarSet& set);

}  // namespace dstrain::formats
