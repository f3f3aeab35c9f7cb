#pragma once

#include <bit>
#include <cstdint>

#include "engine/base/philox.h"

/// An fp32 weight in two halves of 16 bits. The upper one is the bf16 parameter that the forward
/// pass reads: the weight rounded to the nearest, ties away from zero. The lower one is the
/// weight's last 16 bits; as a signed number it is what the parameter lacks or has too much, so
/// that both together are the weight, bit for bit. Ties to even, as a cast has it, could not be
/// undone. As `store_param_remainders` in NVIDIA's Apex
/// (contrib/optimizers/distributed_fused_adam.py).
namespace dstrain::kernels {

struct SplitWeight {
  std::uint16_t upper = 0, lower = 0;

  DSTRAIN_HOST_DEVICE static SplitWeight of(float x) {
    // Any nan becomes one that rounding leaves a nan.
    const std::uint32_t bits = x == x ? std::bit_cast<std::uint32_t>(x) : 0x7fc00000u;
    return {static_cast<std::uint16_t>((bits + 0x8000u) >> 16), static_cast<std::uint16_t>(bits)};
  }
  [[nodiscard]] DSTRAIN_HOST_DEVICE float join() const {
    const std::uint32_t above = static_cast<std::uint32_t>(upper) << 16;
    return std::bit_cast<float>(above - ((lower & 0x8000u) << 1) + lower);
  }
};

}  // namespace dstrain::kernels
