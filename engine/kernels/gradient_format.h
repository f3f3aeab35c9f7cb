#pragma once

#include <cstdint>
#include <type_traits>

#include "engine/kernels/dtype.h"
#include "engine/kernels/optimizer/stochastic_rounding.h"

/// The number formats in which gradients are held (precision.gradients): all that reads or adds to
/// them asks here, so that one more is written into this file.
namespace dstrain::kernels {

template <DType kType>
using GradientFormat = std::integral_constant<DType, kType>;

/// Calls `body` with the GradientFormat of `type`; false: gradients are never of that type, which
/// operators have seen to before a kernel asks.
template <class Body>
bool with_gradient(DType type, const Body& body) {
  switch (type) {
    case DType::f32:
      body(GradientFormat<DType::f32>{});
      return true;
    case DType::bf16:
      body(GradientFormat<DType::bf16>{});
      return true;
    case DType::f16:
      break;
  }
  return false;
}

/// Element i of a gradient, on the host.
template <DType kType>
DSTRAIN_HOST_DEVICE float gradient_value(const void* base, std::int64_t i) {
  static_assert(kType == DType::f32 || kType == DType::bf16);
  if constexpr (kType == DType::f32) return static_cast<const float*>(base)[i];
  return bf16_value(static_cast<const std::uint16_t*>(base)[i]);
}

#ifdef __CUDACC__
template <DType kType>
using GradientElement = std::conditional_t<kType == DType::f32, float, __nv_bfloat16>;
#endif

}  // namespace dstrain::kernels
