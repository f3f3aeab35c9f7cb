#include "engine/kernels/optimizer/split_weight.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/where.h>

#include "engine/base/error.h"
#include "engine/kernels/optimizer/optimizer.h"

namespace dstrain::optimizer {
namespace {

using kernels::SplitWeight;

/// Calls body(i) for all elements, on several threads of the host.
template <class Body>
void for_each_element(std::int64_t count, const Body& body) {
  constexpr std::int64_t kGrain = std::int64_t{1} << 16;
  at::parallel_for(0, count, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) body(i);
  });
}

Halves split_on_host(const at::Tensor& weights) {
  Halves halves{.upper = at::empty_like(weights, at::kBFloat16),
                .lower = at::empty_like(weights, at::kShort)};
  const float* const from = weights.const_data_ptr<float>();
  auto* const upper = static_cast<std::uint16_t*>(halves.upper.mutable_data_ptr());
  auto* const lower = static_cast<std::uint16_t*>(halves.lower.mutable_data_ptr());
  for_each_element(weights.numel(), [=](std::int64_t i) {
    const SplitWeight weight = SplitWeight::of(from[i]);
    upper[i] = weight.upper;
    lower[i] = weight.lower;
  });
  return halves;
}

at::Tensor join_on_host(const at::Tensor& upper, const at::Tensor& lower) {
  at::Tensor weights = at::empty_like(lower, at::kFloat);
  const auto* const above = static_cast<const std::uint16_t*>(upper.const_data_ptr());
  const auto* const below = static_cast<const std::uint16_t*>(lower.const_data_ptr());
  auto* const to = weights.mutable_data_ptr<float>();
  for_each_element(weights.numel(), [=](std::int64_t i) {
    to[i] = SplitWeight{above[i], below[i]}.join();
  });
  return weights;
}

}  // namespace

Halves split(const at::Tensor& weights) {
  DSTRAIN_CHECK(weights.scalar_type() == at::kFloat && weights.is_contiguous(),
                "optimizer: halves of what is not fp32 and dense");
  if (weights.is_cpu()) return split_on_host(weights);
  constexpr std::int64_t kNan = 0x7fc00000;
  at::Tensor bits = at::where(weights.eq(weights), weights.view(at::kInt), kNan);
  const at::Tensor lower = bits.to(at::kShort);  // keeps the last 16 bits
  return {bits.add_(0x8000).bitwise_right_shift_(16).to(at::kShort).view(at::kBFloat16), lower};
}

at::Tensor join(const at::Tensor& upper, const at::Tensor& lower) {
  DSTRAIN_CHECK(upper.scalar_type() == at::kBFloat16 && lower.scalar_type() == at::kShort &&
                    upper.sizes() == lower.sizes() && upper.device() == lower.device() &&
                    upper.is_contiguous() && lower.is_contiguous(),
                "optimizer: halves of weights are bf16 and 16-bit integers, dense, of one size and "
                "on one device");
  if (lower.is_cpu()) return join_on_host(upper, lower);
  // As a signed number the lower half takes back that the upper one was rounded up.
  return upper.view(at::kShort)
      .to(at::kInt)
      .bitwise_left_shift_(16)
      .add_(lower.to(at::kInt))
      .view(at::kFloat);
}

}  // namespace dstrain::optimizer
