#pragma once

#include <cstddef>
#include <string_view>

namespace dstrain {

/// What kernels may use of a GPU.
struct GpuLimits {
  int major = 0, minor = 0;               ///< compute capability
  std::size_t shared_block = 0;           ///< bytes of shared memory that a block may ask for
  std::size_t shared_multiprocessor = 0;  ///< bytes of all blocks of a multiprocessor
  bool bf16_products = false;             ///< tensor cores multiply bf16
  bool fp8_products = false;              ///< and FP8
  bool flash_attention = false;           ///< LibTorch's and cuDNN's kernels run
  bool clusters = false;                  ///< blocks that share their shared memory
  bool warpgroups = false;                ///< wgmma, which 9.0 alone has

  [[nodiscard]] bool are_of_gpu() const { return major > 0; }
};

/// A CPU computes in each format.
inline constexpr GpuLimits kCpuLimits = {.bf16_products = true, .fp8_products = true};

/// Limits of a compute capability (CUDA C++ Programming Guide, table "Technical Specifications per
/// Compute Capability"); those of the newest one known for later ones.
[[nodiscard]] GpuLimits limits_of_capability(int major, int minor);

/// `device` as a GPU of the compute capability `as`, "8.6", would be: never more than it is.
/// Error{usage} where `as` is no capability from 7.5 on, or a newer one than the device's. "12.0"
/// may stand for any device: it has the limits of 8.9 in most respects.
[[nodiscard]] GpuLimits limits_lowered(const GpuLimits& device, std::string_view as);

}  // namespace dstrain
