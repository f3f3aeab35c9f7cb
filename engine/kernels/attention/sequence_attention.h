#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "engine/comm/communicator.h"
#include "engine/kernels/ops.h"

/// Attention of samples whose tokens are spread over the ranks of the sequence axis. Each rank has
/// the rows that Zigzag (engine/mesh/zigzag.h) says. All calls are collective, forward and
/// backward.
///
/// Legend: B samples, T tokens of a sample, s ranks, M = B * T / s own rows: of each sample the two
/// parts of T / (2 s) tokens, one behind the other.
namespace dstrain::ops {

/// Attention of the own rows to all keys of their sequences: keys and values are gathered after the
/// rotation, and once more in backward rather than kept; their gradients are summed over the ranks
/// in fp32. qkv [M, qkv_width] -> [M, width]; causal only. `sequences` are those of all B * T rows.
/// May overwrite qkv.
[[nodiscard]] at::Tensor gathered_attention(const at::Tensor& qkv, const AttentionShape& shape,
                                            const Sequences& sequences, const OwnRows& own,
                                            Communicator& ranks);

/// All heads of the own rows to some heads of all rows: qkv [M, qkv_width] of `shape` -> [B * T,
/// qkv_width / s], of the heads [r heads / s, (r + 1) heads / s) of rank r; s divides both numbers
/// of heads. Jacobs et al. 2023, arXiv:2309.14509, sec. 3.
[[nodiscard]] at::Tensor rows_to_heads(const at::Tensor& qkv, const AttentionShape& shape,
                                       Communicator& ranks);
/// Back, of what attention makes of them: [B * T, width / s] -> [M, width].
[[nodiscard]] at::Tensor heads_to_rows(const at::Tensor& out, const AttentionShape& shape,
                                       Communicator& ranks);

}  // namespace dstrain::ops
