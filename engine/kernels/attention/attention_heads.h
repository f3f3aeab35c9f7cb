#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>

#include "engine/kernels/ops.h"

/// Rows of qkv to heads that an attention backend takes, and gradients back to rows; not for other
/// layers. Legend: B batch, T tokens; a packed batch is one sample of all its rows.
namespace dstrain::ops {

/// Query, key, value or their gradients, each [B, its heads, T, head_dim], last stride 1.
using Heads = std::array<at::Tensor, 3>;

/// Widths of heads that carry linear biases in further elements (kernels::StretchHeads). How exact:
/// positions up to 65535 are two integers below 256, which bf16 and fp16 hold; a slope is within
/// 2^-17 of itself, and the softmax sees it times the distance between two keys only; sums are in
/// fp32, whose rounding of slope * position is about 2^-8 at the last of these positions and
/// 2^-13 at 2048, where the library rounds probabilities to 2^-9 of themselves anyway.
struct StretchedWidths {
  std::int64_t query_key = 0;
  std::int64_t value = 0;  ///< as query_key, or head_dim: then values stay where they are
};

/// What cuDNN is given for heads of `head_dim`: the next multiple of 16 with room for four more,
/// the fastest of those measured on an H200 (64 to 80 rather than 72, 80 to 96, 128 to 144).
[[nodiscard]] StretchedWidths stretched_widths(std::int64_t head_dim);

/// Attention with widths of the caller's choice for what `shape.alibi` asks for, on any device; for
/// measuring and tests.
[[nodiscard]] at::Tensor attention_stretched(const at::Tensor& qkv, const AttentionShape& shape,
                                             const Sequences& sequences, StretchedWidths widths);

/// Views of qkv, no copy.
[[nodiscard]] Heads split_heads(const at::Tensor& qkv, const AttentionShape& shape,
                                const Sequences& sequences);

/// Copies of the heads with what makes linear biases of them behind; values are views if `widths`
/// leaves them.
[[nodiscard]] Heads stretch_heads(const at::Tensor& qkv, const AttentionShape& shape,
                                  const Sequences& sequences, StretchedWidths widths);

/// cos and sin of position * frequency as [length, turning()/2, 2] fp32, made in double; for
/// `length` positions or more, of which there being more than RopeScaling::positions says which
/// frequencies they are. Kept for good, one for each power of two of length: work that reads
/// one may be in flight on any stream.
[[nodiscard]] at::Tensor rotary_table(at::Device device, const AttentionShape& shape,
                                      std::int64_t length);

/// Angle per position of element pair `pair`, in radians: theta^(-2 pair / turning()), scaled.
/// `is_long`: of samples longer than RopeScaling::positions.
[[nodiscard]] double rotary_frequency(const AttentionShape& shape, std::int64_t pair,
                                      bool is_long = false);

/// Applies rotary positions to the query and key heads of qkv, in place.
void rotate_heads(const at::Tensor& qkv, const AttentionShape& shape, const Sequences& sequences);

/// Gradients of (maybe stretched) heads as `packed`, the gradient of qkv, rotary positions undone.
/// Nothing is copied where they are split_heads(packed).
void pack_heads(const Heads& grads, const at::Tensor& packed, const AttentionShape& shape,
                const Sequences& sequences);

/// rows [..., from] as [..., to]: cut, or zeros behind.
[[nodiscard]] at::Tensor resize_rows(const at::Tensor& rows, std::int64_t to);

/// Whose slopes linear biases have: those of `heads` query heads of `model_heads`.
struct Slopes {
  std::int64_t heads = 0, first_head = 0, model_heads = 0;
};

/// Linear biases slope * (position of key - position of query) of [1, heads, queries, keys] fp32,
/// in rows of `row_stride` elements or `keys`. Taken as differences, since fp32 loses slope *
/// position on the way.
[[nodiscard]] at::Tensor linear_biases(const at::Tensor& queries, const at::Tensor& keys,
                                       const Slopes& slopes, std::int64_t row_stride = 0);

}  // namespace dstrain::ops
