#include "engine/models/tensor_rule.h"

#include <fmt/format.h>

#include <string>

#include "engine/base/error.h"

namespace dstrain {
namespace {

bool works(const ModelSizes& sizes, std::int64_t kv_heads, std::int64_t degree) {
  return sizes.heads % degree == 0 && sizes.mlp_width % degree == 0 &&
         (kv_heads % degree == 0 || degree % kv_heads == 0);
}

/// The nearest degrees up to `max` that work, as a hint.
template <class Works>
std::string nearest(int wish, std::int64_t max, const Works& works) {
  std::int64_t below = 1, above = 0;
  for (std::int64_t degree = 1; degree <= max && above == 0; ++degree) {
    if (!works(degree)) continue;
    (degree < wish ? below : above) = degree;
  }
  return above == 0 ? fmt::format("use {}", below) : fmt::format("use {} or {}", below, above);
}

}  // namespace

void require_tensor_degree(const ModelSizes& sizes, const AxisPart& tensor) {
  const std::int64_t kv_heads = sizes.kv_heads > 0 ? sizes.kv_heads : sizes.heads;
  const auto fits = [&](std::int64_t degree) { return works(sizes, kv_heads, degree); };
  if (fits(tensor.count)) return;
  const std::string mlp =
      sizes.mlp_width > 0 ? fmt::format(" and an MLP width of {}", sizes.mlp_width) : "";
  throw Error(ErrorKind::usage,
              fmt::format("parallel.tensor: {} must divide {} heads{}, and "
                          "divide {} key and value heads or be a multiple of them",
                          tensor.count, sizes.heads, mlp, kv_heads),
              nearest(tensor.count, sizes.heads, fits));
}

void require_expert_degree(std::int64_t experts, const Splits& splits) {
  const int expert = splits.expert.count, tensor = splits.tensor.count;
  const auto divides = [&](std::int64_t ranks) { return experts % ranks == 0; };
  if (divides(std::int64_t{expert} * tensor)) return;
  if (tensor == 1) {
    throw Error(
        ErrorKind::usage,
        fmt::format("parallel.expert: {} does not divide model.experts ({})", expert, experts),
        nearest(expert, experts, divides));
  }
  const bool by_expert = divides(tensor);
  const auto with_tensor = [&](std::int64_t degree) { return divides(degree * tensor); };
  throw Error(ErrorKind::usage,
              fmt::format("parallel.expert: {} x parallel.tensor: {} = {} ranks do not divide "
                          "model.experts ({})",
                          expert, tensor, expert * tensor, experts),
              by_expert ? fmt::format("with parallel.tensor: {}, {} for parallel.expert", tensor,
                                      nearest(expert, experts / tensor, with_tensor))
                        : fmt::format("{} for parallel.tensor", nearest(tensor, experts, divides)));
}

}  // namespace dstrain
