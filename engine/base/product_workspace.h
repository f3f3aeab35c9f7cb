#pragma once

#include "engine/base/units.h"

namespace dstrain {

/// Device memory that cuBLASLt may use beside the operands of a product, one such buffer for each
/// stream on which products run: what NVIDIA advises for compute capability 9.0 (cuBLAS, "cuBLAS
/// Workspace Configuration"). The products of the recipes need less than 20 MiB of it.
inline constexpr Bytes kProductWorkspace = Bytes{32} << 20;

}  // namespace dstrain
