#pragma once

#include <array>

namespace dstrain {

/// The folders and files beside `train`, the first that is there, that hold what is for evaluation;
/// words in names of tars that do.
inline constexpr std::array kTestFolders = {"test", "val", "validation", "valid", "dev"};

}  // namespace dstrain
