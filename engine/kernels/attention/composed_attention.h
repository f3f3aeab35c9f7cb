#pragma once

#include "engine/kernels/attention/attention_backends.h"

/// Attention made of products and passes over the scores, for what no library does: soft caps
/// (AttentionShape::softcap). Some queries at a time, so that the scores held at once are few; not
/// for other layers.
namespace dstrain::ops {

/// As ops::attend. Scores are fp32, of products in the type of the heads.
[[nodiscard]] Attended attend_composed(const Heads& in, const Masking& masking);
/// As ops::attend_backward; scores are made again.
[[nodiscard]] Heads attend_composed_backward(const Attended& saved, const at::Tensor& grad,
                                             const Heads& in, const Masking& masking);

/// How many queries of all heads of all samples it takes at once, of `queries` with up to `keys`
/// keys; their scores are 128 MiB.
[[nodiscard]] std::int64_t composed_queries(std::int64_t heads, std::int64_t queries,
                                            std::int64_t keys);

/// Row of each query among the keys, [queries] int32 beside the heads.
[[nodiscard]] at::Tensor query_places(const Heads& in, const Masking& masking);
/// 0 to `end` - 1, int32 beside `like`.
[[nodiscard]] at::Tensor count_to(std::int64_t end, const at::Tensor& like);

}  // namespace dstrain::ops
