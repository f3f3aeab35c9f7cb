#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "engine/kernels/ops.h"
#include "engine/mesh/split.h"
#include "engine/nn/call.h"
#include "engine/nn/workspace.h"
#include "engine/program/comm.h"

/// Softmax attention where the tokens of a sample are spread over the ranks of the sequence axis.
namespace dstrain {

/// qkv [M, qkv_width] of the own rows -> [M, width]. Collective over the axis.
[[nodiscard]] at::Tensor attend_over_ranks(const at::Tensor& qkv, const ops::AttentionShape& shape,
                                           SequenceExchange exchange,
                                           const ops::Sequences& sequences, const Call& call);

/// Error{usage} where `ranks` ranks cannot each have some heads of `shape`.
void require_heads(const ops::AttentionShape& shape, SequenceExchange exchange, int ranks);

/// Adds its collectives for `rows` own rows, on `ranks` ranks; none on one.
void add_sequence_exchanges(std::vector<Exchange>& list, const ops::AttentionShape& shape,
                            SequenceExchange exchange, int ranks, std::int64_t rows,
                            int compute_bytes);
/// What it holds beyond attention of one rank; none on one.
[[nodiscard]] Workspace sequence_workspace(const ops::AttentionShape& shape,
                                           SequenceExchange exchange, int ranks, std::int64_t rows,
                                           int compute_bytes);

}  // namespace dstrain
