#pragma once

#include "engine/base/units.h"

namespace dstrain {

/// What a GPU can do, for plans of cards that are not here and for tests without one.
struct GpuLimits {
  int major = 0, minor = 0;         ///< compute capability
  Bytes shared_block = 0;           ///< shared memory that a block may ask for (opt-in)
  Bytes shared_multiprocessor = 0;  ///< and of all blocks of a multiprocessor
  bool fp16_products = false;       ///< tensor cores have them
  bool bf16_products = false;
  bool fp8_products = false;
  bool async_copies = false;  ///< from device memory to shared memory, cp.async
  bool clusters = false;      ///< of blocks that see each other's shared memory
  bool warpgroups = false;    ///< wgmma: 9.0 alone
};

/// By NVIDIA's "CUDA C++ Programming Guide", technical specifications per compute capability. A
/// capability that is not in the table has those of the newest before it of its major number, or of
/// the newest major number before it; one before 7.0 has no products and 48 KiB.
[[nodiscard]] GpuLimits limits_of_capability(int major, int minor);

}  // namespace dstrain
