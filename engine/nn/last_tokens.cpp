#include "engine/nn/last_tokens.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/floor_divide.h>
#include <ATen/ops/logical_or.h>
#include <ATen/ops/remainder.h>

#include "engine/base/error.h"
#include "engine/mesh/zigzag.h"

namespace dstrain {

LastTokens last_tokens(const at::Tensor& positions, std::int64_t tokens, const AxisPart& part) {
  if (part.whole()) return {.places = positions, .here = {}};
  const auto [first, second] = Zigzag{.ranks = part.count, .rank = part.index}.own();
  const std::int64_t length = tokens / 2;  // of one of the two own parts
  const at::Tensor of_sample = at::floor_divide(positions, length),
                   in_second = of_sample.eq(second),
                   here = at::logical_or(of_sample.eq(first), in_second);
  const at::Tensor places = at::remainder(positions, length) + in_second * length;
  return {.places = places * here, .here = here};
}

at::Tensor agreed(const at::Tensor& found, const LastTokens& last, Communicator* ranks) {
  if (!last.here.defined()) return found;
  DSTRAIN_CHECK(ranks != nullptr, "parts of samples without the communicator of their ranks");
  // Numbers of tokens are exact in fp32.
  at::Tensor shared = (found * last.here).to(at::kFloat);
  ranks->all_reduce(shared, ReduceOp::sum);
  return shared.to(found.scalar_type());
}

}  // namespace dstrain
