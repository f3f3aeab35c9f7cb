#include "engine/base/gpu_limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <utility>

#include "engine/base/error.h"

namespace dstrain {
namespace {

constexpr std::size_t kKib = 1024;
/// What the system keeps of a multiprocessor's shared memory for each block.
constexpr std::size_t kReserved = 1 * kKib;

/// Shared memory of a multiprocessor.
std::size_t shared_of(std::pair<int, int> capability) {
  const auto [major, minor] = capability;
  if (major <= 7) return (minor >= 5 ? 65 : 97) * kKib;  // 64 and 96, and nothing is kept
  if (major == 8) return (minor == 0 || minor == 7 ? 164 : 100) * kKib;
  return (major >= 12 ? 100 : 228) * kKib;
}

}  // namespace

GpuLimits limits_of_capability(int major, int minor) {
  const std::pair capability(major, minor);
  const std::size_t shared = shared_of(capability);
  return {.major = major,
          .minor = minor,
          .shared_block = shared - kReserved,
          .shared_multiprocessor = major <= 7 ? shared - kReserved : shared,
          .bf16_products = major >= 8,
          .fp8_products = capability >= std::pair(8, 9),
          .flash_attention = major >= 8,
          .clusters = major >= 9,
          .warpgroups = capability == std::pair(9, 0)};
}

GpuLimits limits_lowered(const GpuLimits& device, std::string_view as) {
  int major = 0, minor = 0;
  const auto point = as.find('.');
  const auto end = as.data() + as.size();
  const bool parsed =
      point != std::string_view::npos &&
      std::from_chars(as.data(), as.data() + point, major).ptr == as.data() + point &&
      std::from_chars(as.data() + point + 1, end, minor).ptr == end && point + 1 < as.size();
  const std::pair capability(major, minor);
  if (!parsed || capability < std::pair(7, 5))
    throw Error(ErrorKind::usage,
                fmt::format("DSTRAIN_GPU_AS={}: no compute capability from 7.5 on", as),
                "write it as 8.6");
  GpuLimits limits = limits_of_capability(major, minor);
  if (major < 12 && capability > std::pair(device.major, device.minor))
    throw Error(ErrorKind::usage,
                fmt::format("DSTRAIN_GPU_AS={}: the GPU has compute capability {}.{}, and limits "
                            "are only lowered",
                            as, device.major, device.minor));
  limits.shared_block = std::min(limits.shared_block, device.shared_block);
  limits.shared_multiprocessor =
      std::min(limits.shared_multiprocessor, device.shared_multiprocessor);
  limits.bf16_products &= device.bf16_products;
  limits.fp8_products &= device.fp8_products;
  limits.flash_attention &= device.flash_attention;
  limits.clusters &= device.clusters;
  limits.warpgroups &= device.warpgroups;
  return limits;
}

}  // namespace dstrain
