#include "engine/base/gpu_limits.h"

#include <array>

namespace dstrain {
namespace {

struct SharedMemory {
  int major, minor;
  int block_kib, multiprocessor_kib;
};

/// Where one of these differs from those before it.
constexpr std::array kSharedMemory = {
    SharedMemory{0, 0, 48, 48},   SharedMemory{7, 0, 96, 96},   SharedMemory{7, 5, 64, 64},
    SharedMemory{8, 0, 163, 164}, SharedMemory{8, 6, 99, 100},  SharedMemory{8, 7, 163, 164},
    SharedMemory{8, 9, 99, 100},  SharedMemory{9, 0, 227, 228}, SharedMemory{12, 0, 99, 100}};

}  // namespace

GpuLimits limits_of_capability(int major, int minor) {
  const int capability = 10 * major + minor;
  SharedMemory shared = kSharedMemory.front();
  for (const SharedMemory& row : kSharedMemory) {
    if (10 * row.major + row.minor <= capability) shared = row;
  }
  return {.major = major,
          .minor = minor,
          .shared_block = Bytes{shared.block_kib} << 10,
          .shared_multiprocessor = Bytes{shared.multiprocessor_kib} << 10,
          .fp16_products = capability >= 70,
          .bf16_products = capability >= 80,
          .fp8_products = capability >= 89,
          .async_copies = capability >= 80,
          .clusters = capability >= 90,
          .warpgroups = capability == 90};
}

}  // namespace dstrain
