#pragma once

#include <array>

namespace dstrain {

/// The folders beside `train`, the first that is there, that hold images or clips for evaluation;
/// words in names of tars that do.
inline constexpr std::array kTestFolders = {"test", "val", "validation"};

}  // namespace dstrain
