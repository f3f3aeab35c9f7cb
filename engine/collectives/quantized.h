#pragma once

#include <ATen/core/Tensor.h>

#include "engine/comm/communicator.h"
#include "engine/kernels/wire/wire.h"
#include "engine/mesh/coded_group.h"

/// Collectives of ZeRO-3 whose numbers travel as codes. Wang et al. 2023 (ZeRO++),
/// arXiv:2306.10209, sec. 3.1 (weights) and 3.3 (gradients). Flat dense tensors on one device;
/// shard r of a group is its r-th equal part, and the rank of that shard has coordinate r. Like the
/// communicators' operations they are collective, and on a GPU enqueued on the current stream.
/// `scratch` is uint8, aligned to 16 bytes, with at least the bytes that CodedGroup says; it may be
/// used again by what follows on the stream.
namespace dstrain {

/// `whole` (fp32, bf16 or fp16) = the shards of all ranks, decoded from their codes: this rank's,
/// too, so that all ranks compute with the same numbers. `own`: this rank's shard, of any of these
/// types; its place in `whole`, or no part of it. Plain elements travel in the type of `whole`.
void all_gather_quantized(Communicator& comm, const CodedGroup& group, const at::Tensor& own,
                          at::Tensor& whole, at::Tensor& scratch);

/// The shard axis cut in two (engine/mesh/shard_groups.h): this rank's communicators.
struct ReduceGroups {
  Communicator& inner;
  Communicator& outer;
};

/// Where the sum goes: this rank's shard, fp32.
struct ReducedShard {
  at::Tensor own;
  bool add = false;  ///< to what it holds; else that is overwritten
};

/// Sum over all ranks of `whole` (fp32): exact inside the inner group, then one hop as codes to the
/// rank of the outer group that owns them, which sums in fp32 in the order of outer indices. int8
/// and fp8 to the nearest, int4 at random, where `place` is that of the group's first element, and
/// nodes count from place.node. With an outer group of one nothing is coded. Plain elements travel
/// in fp32. `whole` holds nothing of use afterwards.
void reduce_scatter_quantized(const ReduceGroups& groups, const CodedGroup& group,
                              at::Tensor& whole, const ReducedShard& to,
                              const wire::RandomPlace& place, at::Tensor& scratch);

}  // namespace dstrain
