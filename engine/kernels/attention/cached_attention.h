#pragma once

#include <ATen/core/Tensor.h>

#include "engine/kernels/ops.h"

/// Attention of a model that writes: keys and values of earlier tokens are kept, so that a token
/// costs one row.
namespace dstrain::ops {

/// Keys and values of one layer, each [slots, capacity, kv_heads, head_dim]; a sequence has a slot.
struct KeyValues {
  at::Tensor keys, values;
};

/// Where the rows of a pass go. Their positions are Sequences::positions.
struct CachedRows {
  at::Tensor slots;    ///< [M] int32
  bool whole = false;  ///< each sequence begins in this pass, so that its rows see no others
  KeyValues cache;     ///< of the layer that runs
};

/// As attention(): each row sees its sequence's earlier tokens, of this pass and before.
/// `sequences` has starts (each row one of its own where they are not whole), positions, and as
/// `longest` a bound of them. Has no gradient. May overwrite qkv.
[[nodiscard]] at::Tensor cached_attention(const at::Tensor& qkv, const AttentionShape& shape,
                                          const Sequences& sequences, const CachedRows& rows);

}  // namespace dstrain::ops
