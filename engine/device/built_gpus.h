#pragma once

#include <string_view>

namespace dstrain {

/// Compute capabilities that this build has machine code for, in rising order: "8.0,9.0".
[[nodiscard]] std::string_view built_gpus();

/// A GPU of compute capability `major`.`minor` runs kernels built for `built` (as built_gpus()):
/// machine code of the same major number and no larger minor one, or the PTX of the newest.
[[nodiscard]] bool runs_kernels_of(std::string_view built, int major, int minor);

}  // namespace dstrain
