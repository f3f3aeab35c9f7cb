#include "engine/models/tensor_rule.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.h"

namespace dstrain {
namespace {

bool works(const ModelSizes& sizes, std::int64_t kv_heads, std::int64_t degree) {
  return sizes.heads % degree == 0 && sizes.mlp_width % degree == 0 &&
         (kv_heads % degree == 0 || degree % kv_heads == 0);
}

}  // namespace

void require_tensor_degree(const ModelSizes& sizes, const AxisPart& tensor) {
  const std::int64_t kv_heads = sizes.kv_heads > 0 ? sizes.kv_heads : sizes.heads;
  if (works(sizes, kv_heads, tensor.count)) return;
  std::int64_t below = 1, above = 0;
  for (std::int64_t degree = 1; degree <= sizes.heads && above == 0; ++degree) {
    if (!works(sizes, kv_heads, degree)) continue;
    (degree < tensor.count ? below : above) = degree;
  }
  throw Error(
      ErrorKind::usage,
      fmt::format("parallel.tensor: {} must divide {} heads and an MLP width of {}, and "
                  "divide {} key and value heads or be a multiple of them",
                  tensor.count, sizes.heads, sizes.mlp_width, kv_heads),
      above == 0 ? fmt::format("use {}", below) : fmt::format("use {} or {}", below, above));
}

}  // namespace dstrain
