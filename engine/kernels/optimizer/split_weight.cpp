#include <ATen/ops/where.h>

#include "engine/base/error.h"
#include "engine/kernels/optimizer/optimizer.h"

namespace dstrain::optimizer {

Halves split(const at::Tensor& weights) {
  DSTRAIN_CHECK(weights.scalar_type() == at::kFloat && weights.is_contiguous(),
                "optimizer: halves of what is not fp32 and dense");
  constexpr std::int64_t kNan = 0x7fc00000;
  at::Tensor bits = at::where(weights.eq(weights), weights.view(at::kInt), kNan).to(at::kInt);
  const at::Tensor lower = bits.to(at::kShort);  // keeps the last 16 bits
  return {bits.add_(0x8000).bitwise_right_shift_(16).to(at::kShort).view(at::kBFloat16), lower};
}

at::Tensor join(const at::Tensor& upper, const at::Tensor& lower) {
  DSTRAIN_CHECK(upper.scalar_type() == at::kBFloat16 && lower.scalar_type() == at::kShort &&
                    upper.sizes() == lower.sizes(),
                "optimizer: halves of weights are bf16 and 16-bit integers of one size");
  // A negative lower half is one that was rounded up, and as a summand it takes that back.
  return upper.view(at::kShort)
      .to(at::kInt)
      .bitwise_left_shift_(16)
      .add_(lower.to(at::kInt))
      .view(at::kFloat);
}

}  // namespace dstrain::optimizer
